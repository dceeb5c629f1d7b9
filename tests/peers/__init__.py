"""The real pi, omp and dsh, for tests that ask what they would say."""

from .dsh_peer import DshOracle, DshProcess, dsh, headless
from .mock_model import MockModel
from .peers import Oracle, OracleError, assistant, old_pi, omp, op, pi, tool_call, tool_result, user
from .processes import OmpProcess, PiProcess, RpcError, RpcProcess, holds, on_path

__all__ = [
    "DshOracle",
    "DshProcess",
    "MockModel",
    "OmpProcess",
    "Oracle",
    "OracleError",
    "PiProcess",
    "RpcError",
    "RpcProcess",
    "assistant",
    "dsh",
    "headless",
    "holds",
    "old_pi",
    "omp",
    "on_path",
    "op",
    "pi",
    "tool_call",
    "tool_result",
    "user",
]
