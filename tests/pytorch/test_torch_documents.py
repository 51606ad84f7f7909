"""The code in the pages on PyTorch runs as it stands there, as ranks that a launcher started."""

import secrets
import socket

import pytest
from support.documents import blocks, execute_for_launcher
from support.harness import run_processes

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if block.how.endswith(" with torch")], ids=lambda block: block.name
)
def test_code_of_a_document(block):
    if "transformers" in block.code:
        pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHMRING_SESSION": secrets.token_hex(8)}
    run_processes(block.size, execute_for_launcher, block, {"WORLD_SIZE": str(block.size), **variables})
