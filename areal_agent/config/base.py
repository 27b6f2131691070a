"""The base of all settings: frozen, closed, each field with its help string below it."""

from pydantic import BaseModel, ConfigDict


class ConfigModel(BaseModel):
    """A settings section. Unknown keys are refused; values do not change after loading."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
    )
