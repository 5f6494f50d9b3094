"""Models by their names, what their failures mean, and what their answers cost. Loaded only in a child."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelServerError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.profiles import merge_profile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class

from rota.agent import Unusable
from rota.executors.named import named
from rota.model.agent_config import Prices

FUNCTION = "function:"

# An answer that ends without saying that this was all was cut.
_STRICT = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
_PASSING = (ModelRateLimitError, ModelUnavailableError, ModelServerError, ModelConnectionError)
_VARIABLE = re.compile(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`")
_PASSING_CODES = (408, 409, 425, 429)


def model_named(name: str, base_url: str | None) -> Model:
    """The model of that name; its key is found in the environment, under the name its provider gives it."""
    if name.startswith(FUNCTION):
        return FunctionModel(stream_function=function_named(name.removeprefix(FUNCTION)), model_name=name)
    try:
        model = infer_model(name, lambda provider: _provider(provider, base_url))
        model.profile = merge_profile(model.profile, _STRICT)
        return model
    except UserError as mistake:
        raise Unusable(describe_missing(name, mistake.message)) from mistake
    except (ImportError, TypeError, ValueError) as mistake:
        raise Unusable(f"the model {name!r} cannot be used: {mistake}") from mistake


def describe_missing(name: str, told: str) -> str:
    """What a model lacks. The library's own words are for programmers, but they name the variables."""
    variables = list(dict.fromkeys(_VARIABLE.findall(told)))
    keys = [each for each in variables if each.endswith(("KEY", "TOKEN"))]
    if keys:
        return f"the model {name!r} has no key: give the agent a credential as {' or '.join(keys)}"
    if variables:
        needed = " or ".join(variables)
        return f"the model {name!r} lacks {needed}: set it in the agent's env, or give the agent a credential as that"
    return f"the model {name!r} cannot be used: {told}"


def _provider(name: str, base_url: str | None) -> Provider[Any]:
    if base_url is None:
        return infer_provider(name)
    made: Any = infer_provider_class(name)
    provider: Provider[Any] = made(base_url=base_url)
    return provider


def function_named(target: str) -> Any:
    """A function by `module:function`."""
    found = named(target)
    if not callable(found):
        raise Unusable(f"{target!r} is not a function")
    return found


def may_pass(failure: Exception) -> bool:
    """Whether the same request may go well a little later: the provider is busy, broken or out of reach."""
    if isinstance(failure, ModelQuotaExceededError | ContentFilterError):
        return False
    if isinstance(failure, _PASSING):
        return True
    if isinstance(failure, ModelHTTPError):
        return failure.status_code >= 500 or failure.status_code in _PASSING_CODES
    return isinstance(failure, ModelAPIError | UnexpectedModelBehavior)  # nonsense instead of an answer


def price(response: ModelResponse, prices: Mapping[str, Any] | None) -> float | None:
    """Money for one answer: by the agent's own prices, else by the library's list, else unknown."""
    if prices is not None:
        usage = response.usage
        return Prices(**prices).cost(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens)
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return None
