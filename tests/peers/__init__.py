"""The real pi and omp, for tests that ask what they would say."""

from .mock_model import MockModel
from .peers import Oracle, OracleError, assistant, old_pi, omp, op, pi, tool_call, tool_result, user
from .processes import OmpProcess, PiProcess, RpcError, RpcProcess, holds

__all__ = [
    "MockModel",
    "OmpProcess",
    "Oracle",
    "OracleError",
    "PiProcess",
    "RpcError",
    "RpcProcess",
    "assistant",
    "holds",
    "old_pi",
    "omp",
    "op",
    "pi",
    "tool_call",
    "tool_result",
    "user",
]
