"""The program of `acp_agent.py`: starts it in half the time.

The protocol's library has hundreds of pydantic models. Their field descriptions are not read from the source here, and
their validators are built on first use.
"""

import asyncio

import pydantic
from pydantic._internal import _fields

pydantic.BaseModel.model_config["defer_build"] = True
_fields.extract_docstrings_from_cls = lambda *_, **__: {}  # type: ignore[attr-defined]

if __name__ == "__main__":
    import acp_agent  # type: ignore[import-not-found] # its folder is on the path of the script

    asyncio.run(acp_agent.main())
