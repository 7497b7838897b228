"""The small models of tests/data/fixtures and what is expected of them, as fixtures are laid out: a folder of
Hugging Face's, `tokens.bin` (16 bits a token) and `ref/`."""
import numpy as np

import gpt2
from arithmetic import Random, total_of_all
from files import from_bf16, to_bf16, token_bytes, write_json, write_safetensors
from training import batch_at, norm_of, train

TINY = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 256, "n_positions": 32}
# No size is a round number, and no head's width is even.
ODD = {"n_layer": 3, "n_head": 5, "n_embd": 35, "vocab_size": 211, "n_positions": 29}
HYPER = {"lr": 1e-3, "min_lr": 0.0, "warmup": 0, "schedule": "constant", "beta1": 0.9, "beta2": 0.95,
         "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
PROMPT, CONTINUATION, SAMPLES = 8, 16, 32


def config_of(sizes, torch_dtype):
    end = sizes["vocab_size"] - 1
    return {"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.0,
            "bos_token_id": end, "embd_pdrop": 0.0, "eos_token_id": end, "initializer_range": 0.02,
            "layer_norm_epsilon": gpt2.EPSILON, "model_type": "gpt2", "n_ctx": sizes["n_positions"],
            "n_inner": None, "resid_pdrop": 0.0, "scale_attn_weights": True, "tie_word_embeddings": True,
            "torch_dtype": torch_dtype, **sizes}


def make_weights(sizes, seed):
    """Biases are not 0 and gains not 1, so that one that is forgotten or swapped shows."""
    random, weights = Random(seed), {}
    for name, shape in gpt2.shapes(sizes).items():
        bell = random.bell(shape)
        if len(shape) == 1:
            values = 1 + 0.2 * bell if name.endswith("weight") else 0.1 * bell
        else:
            # Large enough that continuations have clear leads and are not always one token again.
            width = shape[0] if name.startswith("h.") else shape[1]
            values = (0.7 if name.startswith("h.") else 1.5) * bell / np.sqrt(np.float64(width))
        weights[name] = values.astype(np.float32)
    return weights


def make_tokens(vocabulary, count, seed):
    """A rule with exceptions, which a model can learn."""
    random = Random(seed)
    follows = random.below(vocabulary, vocabulary)
    free, keeps_rule = random.below(vocabulary, count), random.below(10, count) < 7
    ids = [int(free[0])]
    for at in range(1, count):
        ids.append(int(follows[ids[-1]] if keeps_rule[at] else free[at]))
    return np.array(ids)


def summary(x):
    """What stands for a whole tensor."""
    flat = x.reshape(-1)
    places = sorted({(len(flat) - 1) * i // (SAMPLES - 1) for i in range(SAMPLES)})
    return {"l2": norm_of({"": flat}), "sum": total_of_all(flat),
            "samples": [[at, float(flat[at])] for at in places]}


def write_reference(folder, sizes, weights, tokens, hyper):
    p = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    ids, targets = batch_at(tokens, 0, hyper)
    loss, losses, logits, grad = gpt2.loss_and_gradients(p, sizes, ids, targets)
    prompt = tokens[:PROMPT].tolist()
    continuation, lead = gpt2.greedy(p, sizes, prompt, CONTINUATION)
    assert lead > 0.05, f"{folder.parent.name}: rounding could choose another token ({lead})"
    norm = norm_of(grad)
    optimizer, trajectory = train(p, sizes, tokens, hyper)
    write_safetensors(folder / "ref.safetensors", {"input_ids": ids, "targets": targets, "logits": logits} |
                      {"grad." + name: g for name, g in grad.items()})
    write_json(folder / "ref.json", {
        "hyper": hyper, "loss": loss, "loss_per_token": losses.reshape(-1).tolist(), "grad_norm": norm,
        "trajectory": trajectory, "greedy": {"prompt": prompt, "ids": continuation, "min_margin": lead},
        "final_params": {name: summary(x) for name, x in p.items()},
        "final_exp_avg": {name: summary(x) for name, x in optimizer.first.items()},
        "final_exp_avg_sq": {name: summary(x) for name, x in optimizer.second.items()}})


def write_model(folder, sizes, weights, dtype="F32"):
    (folder / "ref").mkdir(parents=True)
    write_json(folder / "config.json",
               config_of(sizes, {"F32": "float32", "BF16": "bfloat16"}[dtype]))
    write_safetensors(folder / "model.safetensors", weights, dtype)


def write_fixtures(folder):
    # Seeds are chosen: of some a first gradient is so near 0 that rounding to float32 decides which way Adam
    # goes, or the second choice of a continuation is close to the first.
    hyper = HYPER | {"batch": 4, "seq": 32, "steps": 20}
    tiny = make_weights(TINY, seed=225)
    tokens = make_tokens(TINY["vocab_size"], 4 * 32 * 20 + 1, seed=226)
    write_model(folder / "tiny", TINY, tiny)
    (folder / "tiny" / "tokens.bin").write_bytes(token_bytes(tokens))
    write_reference(folder / "tiny" / "ref", TINY, tiny, tokens, hyper)

    # As some files of the hub have it: a prefix, and the causal mask among the weights. Its numbers are tiny's.
    context = TINY["n_positions"]
    mask = np.tril(np.ones((1, 1, context, context), np.float32))
    masks = {f"h.{layer}.attn.bias": mask for layer in range(TINY["n_layer"])}
    write_model(folder / "tiny-prefixed", TINY,
                {"transformer." + name: tensor for name, tensor in (tiny | masks).items()})
    (folder / "tiny-prefixed" / "ref").rmdir()

    write_model(folder / "tiny-bf16", TINY, tiny, "BF16")
    rounded = {name: from_bf16(to_bf16(tensor)) for name, tensor in tiny.items()}
    write_reference(folder / "tiny-bf16" / "ref", TINY, rounded, tokens, hyper)

    hyper = HYPER | {"batch": 2, "seq": 23, "steps": 20, "lr": 6e-4, "min_lr": 6e-5, "warmup": 5,
                     "schedule": "cosine"}
    odd = make_weights(ODD, seed=294)
    tokens = make_tokens(ODD["vocab_size"], 2 * 23 * 20 + 1, seed=295)
    write_model(folder / "odd", ODD, odd)
    (folder / "odd" / "tokens.bin").write_bytes(token_bytes(tokens))
    write_reference(folder / "odd" / "ref", ODD, odd, tokens, hyper)
