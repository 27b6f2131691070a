"""Any causal language model of ``transformers``, loaded from a local Hugging Face folder.

Nothing is ever downloaded, no code from a folder is run, and only safetensors are read.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from areal_agent.errors import ConfigError

if TYPE_CHECKING:  # it takes seconds to import, and the driver only asks where models are
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

BUILTIN_PREFIX = "builtin:"
"""Names of models that ship with this package start with this."""

ASSETS = Path(__file__).parent / "assets"
"""Where those models are."""


def resolve_model(name: str) -> Path:
    """Return the folder of a model named ``builtin:NAME`` or by its path.

    Raises:
        ConfigError: there is no such folder, or it holds no model that can be loaded.
    """
    if name.startswith(BUILTIN_PREFIX):
        known = {f"{BUILTIN_PREFIX}{p.name}": p for p in sorted(ASSETS.glob("*")) if p.is_dir()}
        if name not in known:
            raise ConfigError(
                f"expected one of {', '.join(known) or 'no built-in model'}, got model {name!r}"
            )
        folder = known[name]
    else:
        folder = Path(name).expanduser().resolve()  # a link is served under its target's name
    check_model_folder(folder)
    return folder


def check_model_folder(folder: Path) -> None:
    """Refuse a folder that is not a Hugging Face model with safetensors.

    Raises:
        ConfigError: saying what is missing and what to do.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"model folder {str(folder)!r} does not exist: set model to a local Hugging Face "
            "folder (models are not downloaded) or to a built-in one such as 'builtin:calculator'"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model folder {str(folder)!r} has no config.json: it must be a Hugging Face folder "
            "as save_pretrained writes it"
        )
    if (folder / "model.safetensors").is_file():
        return
    if (folder / "model.safetensors.index.json").is_file():
        return
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    got = f"only {', '.join(pickles)}" if pickles else "none"
    raise ConfigError(
        f"model folder {str(folder)!r} needs weights in model.safetensors, got {got}: save it with "
        "save_pretrained of transformers 4.30 or newer"
    )


def load_vocab_size(folder: Path) -> int:
    """Return how many token ids the model in `folder` knows.

    Raises:
        ConfigError: its config.json cannot be read.
    """
    try:
        config = AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        return int(config.get_text_config().vocab_size)
    except Exception as error:
        raise ConfigError(
            f"{str(folder / 'config.json')!r} describes no language model: {error}"
        ) from error


def pick_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu`` or ``cuda`` into a device; ``auto`` takes CUDA when there is one.

    Raises:
        ConfigError: CUDA is asked for and not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device is 'cuda', but torch sees no CUDA device here: set it to 'auto' or 'cpu'"
        )
    return torch.device(name)


@contextmanager
def without_progress_bar() -> Generator[None]:
    """Keep transformers from drawing a bar for each file while the body runs."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def load_causal_lm(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> "PreTrainedModel":
    """Load the model in `folder`, in evaluation mode, with SDPA attention where it has it.

    Raises:
        ConfigError: the folder is no model, its weights cannot be read, or some are missing.
    """
    check_model_folder(folder)
    options: dict[str, Any] = {
        "dtype": dtype,
        "local_files_only": True,
        "use_safetensors": True,
        "trust_remote_code": False,
        "output_loading_info": True,
    }
    try:
        with without_progress_bar():
            loaded = AutoModelForCausalLM.from_pretrained(str(folder), **options)
    except Exception as error:
        raise ConfigError(
            f"the model in {str(folder)!r} cannot be loaded as a causal language model: {error}"
        ) from error
    model, info = cast("tuple[PreTrainedModel, dict[str, Any]]", loaded)
    wrong = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if wrong:
        raise ConfigError(
            f"the weights in {str(folder)!r} lack or misshape {', '.join(wrong[:5])}"
            f"{' and more' if len(wrong) > 5 else ''}: they would start at random; complete the "
            "folder"
        )
    if info["unexpected_keys"]:
        logger.warning("%s holds weights that are not used: %s", folder, info["unexpected_keys"])
    model.eval()
    return cast("PreTrainedModel", cast("Any", model).to(device))
