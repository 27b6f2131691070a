"""Names in settings to Python objects: short names, ``module:Name`` and ``file.py:Name``.

Only what is chosen is imported. Short names come from a map that the caller brings and from the
entry-point group ``areal_agent.<kind>``, so a package of yours can add its own.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from areal_agent.errors import ConfigError, DataError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

SCRIPT_PREFIX = "areal_agent_script_"
"""What the names of modules begin with that `load_script` has imported."""


def resolve(
    name: str,
    *,
    kind: str,
    base: Path | None = None,
    builtin: Mapping[str, str] | None = None,
) -> Any:
    """Return the object that `name` stands for.

    Args:
        name: a short name, ``module:Name`` or ``path/to/file.py:Name``.
        kind: what is looked for, as in the entry-point group ``areal_agent.<kind>``.
        base: folder that a relative path starts from. None takes the working directory.
        builtin: short names known to the caller, each with its ``module:Name``.

    Raises:
        ConfigError: no such name, module, file or attribute, or importing it failed.
    """
    target, colon, attribute = name.rpartition(":")
    if not colon:
        return _by_short_name(name, kind=kind, builtin=builtin or {})
    if not target or not attribute:
        raise ConfigError(
            f"expected {_singular(kind)} as a short name, 'module:Name' or 'file.py:Name', "
            f"got {name!r}"
        )
    if target.endswith(".py"):
        return _attribute(load_script((base or Path.cwd()) / target), attribute, name)
    return _attribute(_import(target, name), attribute, name)


def available(kind: str, builtin: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the short names of a kind, sorted, each with where it comes from. Imports none."""
    names = {name: entry.value for name, entry in _entry_points(kind).items()}
    return dict(sorted((names | dict(builtin or {})).items()))


def resolve_args(args: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return a workflow's arguments with the names under ``reward_fn`` and in ``tools`` resolved.

    Raises:
        ConfigError: a name stands for nothing, or ``tools`` is no list.
    """
    out = dict(args)
    if isinstance(out.get("reward_fn"), str):
        out["reward_fn"] = resolve(out["reward_fn"], kind="rewards", base=base)
    tools = out.get("tools")
    if isinstance(tools, str):
        raise ConfigError(f"workflow.args.tools: expected a list of names, got {tools!r}")
    if isinstance(tools, list):
        out["tools"] = [
            resolve(tool, kind="tools", base=base) if isinstance(tool, str) else tool
            for tool in cast("list[Any]", tools)
        ]
    return out


def parameters(factory: Any) -> list[str]:
    """Return the names of a callable's parameters; none where it does not tell."""
    try:
        return list(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        return []


def construct(factory: Any, args: Mapping[str, Any], name: str) -> Any:
    """Call what was named in the settings.

    Raises:
        ConfigError: it does not take `args`, or failed.
        DataError: it says so itself.
    """
    try:
        inspect.signature(factory).bind(**args)
    except TypeError as error:
        raise ConfigError(
            f"{name} does not take these args: {error}; got {sorted(args)}, it takes "
            f"{sorted(parameters(factory))}"
        ) from error
    try:
        return factory(**args)
    except (ConfigError, DataError):
        raise
    except Exception as error:
        raise ConfigError(f"{name} failed with {type(error).__name__}: {error}") from error


def is_function_of_data(thing: object) -> bool:
    """Tell whether `thing` is a function whose first parameter is ``data``: an agent as it is."""
    return inspect.isfunction(thing) and parameters(thing)[:1] == ["data"]


def bind(function: Callable[..., Any], args: Mapping[str, Any], name: str) -> Callable[..., Any]:
    """Return a function to which `args` are handed with each call.

    Raises:
        ConfigError: it does not take them.
    """
    try:
        inspect.signature(function).bind_partial(**args)
    except TypeError as error:
        raise ConfigError(
            f"{name} does not take these args: {error}; got {sorted(args)}, it takes "
            f"{sorted(parameters(function))}"
        ) from error
    return partial(function, **args)


def load_script(path: Path) -> ModuleType:
    """Import a Python file by path, once per path and process.

    Its module name depends on the path alone and stands in `sys.modules`: a worker process that
    loads the same path can unpickle what another one pickled.

    Raises:
        ConfigError: there is no such file, or running it failed.
    """
    path = path.absolute().resolve()
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    module_name = f"{SCRIPT_PREFIX}{digest}_{path.stem}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    if not path.is_file():
        raise ConfigError(f"expected a Python file at {str(path)!r}, but there is none")
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"expected a Python file, got {str(path)!r}, which cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if not isinstance(error, Exception):
            raise
        raise ConfigError(f"importing {str(path)!r} failed: {_described(error)}") from error
    return module


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is probably a slip of, if there is one."""
    from difflib import get_close_matches

    by_lower = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the closest known name, or nothing when none is close."""
    close = closest(name, known)
    return "" if close is None else f"; did you mean {close!r}?"


def _by_short_name(name: str, *, kind: str, builtin: Mapping[str, str]) -> Any:
    target = builtin.get(name)
    if target is None:
        entry = _entry_points(kind).get(name)
        target = entry.value if entry is not None else None
    if target is None:
        known = available(kind, builtin)
        raise ConfigError(
            f"{name!r} is not {_singular(kind)}{did_you_mean(name, known)}\n"
            f"expected one of {', '.join(known) or '(none is installed)'}, "
            "or one of your own as 'module:Name' or 'path/to/file.py:Name'"
        )
    module, _, attribute = target.partition(":")
    return _attribute(_import(module, name), attribute, name)


def _entry_points(kind: str) -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=f"areal_agent.{kind}")}


def _import(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            raise ConfigError(
                f"{name!r} needs the module {error.name!r}, which is not installed or not on the "
                "path; a file is written 'path/to/file.py:Name'"
            ) from error
        raise ConfigError(
            f"importing {module!r} for {name!r} failed: {_described(error)}"
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"importing {module!r} for {name!r} failed: {_described(error)}"
        ) from error


def _attribute(module: ModuleType, attribute: str, name: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            there = _public_names(found)
            raise ConfigError(
                f"{name!r} names {part!r}, but {_place(module)} has only: "
                f"{', '.join(there) or 'nothing public'}{did_you_mean(part, there)}"
            )
        found = getattr(found, part)
    return found


def _public_names(owner: Any) -> list[str]:
    """Names defined by a module itself; imported ones would only be noise."""
    own: list[str] = []
    for name, value in vars(owner).items():
        foreign = getattr(value, "__module__", None) != getattr(owner, "__name__", None)
        if not name.startswith("_") and callable(value) and not foreign:
            own.append(name)
    return sorted(own)


def _place(module: ModuleType) -> str:
    is_script = module.__name__.startswith(SCRIPT_PREFIX)
    return repr(module.__file__ if is_script else module.__name__)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _singular(kind: str) -> str:
    word = kind.replace("_", " ").removesuffix("s")
    return f"{'an' if word[:1] in 'aeiou' else 'a'} {word}"
