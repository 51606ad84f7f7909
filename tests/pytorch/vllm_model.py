"""A program: vLLM generates greedily with a tiny random model; prints a line of JSON after `answers: `."""

import hashlib
import json
import os
import signal
import sys
import threading
import time

import torch

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ALLOW_INSECURE_SERIALIZATION="1",  # functions for the workers, below
    VLLM_NO_USAGE_STATS="1",
)
PROMPTS = [{"prompt_token_ids": ids} for ids in (list(range(5, 25)), [7, 3, 400], [250] * 9)]


def make(place):
    """A model with random weights, wide apart enough that rounding does not decide which token is likeliest."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 256, "initializer_range": 0.2,
    }  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(f"{place}/llama")


def engine(model, shape):
    from vllm import LLM

    return LLM(
        model, tensor_parallel_size=shape.get("tensor", 1), max_model_len=256, seed=0, dtype="float32",
        enforce_eager=not shape.get("compiled"), skip_tokenizer_init=True, distributed_executor_backend="mp",
    )  # fmt: skip


def generate(llm, count=16):
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    return [list(one.outputs[0].token_ids) for one in llm.generate(PROMPTS, greedy, use_tqdm=False)]


def watch_logits(worker):
    """In a worker: digest all logits from now on."""
    model, worker.digest = worker.model_runner.model, hashlib.sha256()
    compute = model.compute_logits

    def computed(*args, **kwargs):
        logits = compute(*args, **kwargs)
        worker.digest.update(logits.contiguous().view(torch.uint8).numpy())
        return logits

    model.compute_logits = computed


def backend(worker):
    """In a worker: the backend of the device groups."""
    from vllm.platforms import current_platform

    return current_platform.dist_backend


def calls(worker):
    """In a worker: calls on the communicator of its tensor parallel group, if it is of shmring."""
    from vllm.distributed import parallel_state

    comm = getattr(parallel_state.get_tp_group().device_group, "comm", None)
    return 0 if comm is None else comm.stats()["calls"]


def queue_class(worker):
    """In a worker: the class of the queues between processes."""
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    return type(MessageQueue(1, 1)).__name__


def digest(worker):
    """In a worker: of all its logits."""
    return worker.digest.hexdigest()


def tokens(model, shape):
    llm = engine(model, shape)
    llm.collective_rpc(watch_logits)
    found = generate(llm)
    asked = {"backends": backend, "calls": calls, "logits": digest, "queues": queue_class}
    every = {name: llm.collective_rpc(fn) for name, fn in asked.items()}
    return {"tokens": found, **every}


def death(model, shape):
    """Kill a worker while it generates."""
    llm = engine(model, shape)
    victim = llm.collective_rpc(lambda worker: os.getpid())[-1]
    generate(llm)
    killer = threading.Thread(target=lambda: (time.sleep(0.5), os.kill(victim, signal.SIGKILL)))
    killer.start()
    try:
        for _ in range(10000):
            generate(llm, 100)
    except Exception as error:
        return {"error": type(error).__name__}
    finally:
        killer.join()
    return {"error": None}


if __name__ == "__main__":
    case, place, *shape = sys.argv[1:]
    if case == "make":
        make(place)
    else:
        print("answers:", json.dumps({"tokens": tokens, "death": death}[case](place, json.loads(shape[0]))), flush=True)
