#!/usr/bin/env python3
"""Names of the keys that `transformers` knows in a config.json, with their defaults.

  config_keys.py [--write FILE]

For each family: the fields of its configuration class, their aliases, and every attribute that the
family's own code, and the code which all families share (masks, rotary positions, caches, loading),
reads of a configuration. The file (tests/interop/config_keys.json) holds names and defaults alone;
`models_test "[config_keys]"` holds our table of keys against it. Run it again for a new version, by
hand, with a python that has transformers.
"""
import argparse
import dataclasses
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import transformers
from transformers import AutoConfig, GenerationConfig

FAMILIES = ("gpt2", "gptj", "gpt_neox", "llama", "mistral", "qwen2", "qwen3")
SHARED = ("masking_utils", "modeling_rope_utils", "modeling_utils", "cache_utils", "modeling_layers",
          "configuration_utils", "modeling_attn_mask_utils", "modeling_flash_attention_utils",
          "integrations/sdpa_attention", "integrations/flash_attention", "integrations/flex_attention",
          "integrations/tensor_parallel", "loss/loss_utils", "core_model_loading")
# What Python's own objects and transformers' helpers have; no key of a file.
METHODS = re.compile(r"^(__.*|to_.*|from_.*|get_.*|save_.*|standardize_.*|validate_.*|convert_.*|"
                     r"nested_.*|sub_configs.*|base_model_.*|attribute_map|_auto_class|_rope_.*|"
                     r"json|is_heterogeneous|ignore_keys_.*|default_theta|default_rope_type|items|copy|update|keys|get|pop)$")


def read_attributes(source):
    """Attributes that a source reads of something whose name ends in config."""
    found = set(re.findall(r"\b(?:\w*_)?config\.([a-zA-Z_]\w*)", source))
    found |= set(re.findall(r"(?:getattr|hasattr)\(\s*(?:[\w.]*_)?(?:self\.)?config(?:\.get_text_config\([^)]*\))?,\s*\"(\w+)\"", source))
    return found


def legacy_keys(config):
    """Keys that a configuration class takes beside its fields."""
    source = "".join(inspect.getsource(method) for kind in type(config).__mro__ for name, method in
                     vars(kind).items() if name in ("__post_init__", "convert_rope_params_to_dict",
                                                    "standardize_rope_params"))
    return set(re.findall(r"kwargs\.(?:pop|get)\(\s*\"(\w+)\"", source)) | set(
        re.findall(r"(?:getattr|hasattr)\(self, \"(\w+)\"", source))


def plain(value):
    """A default as JSON has it; None for what JSON cannot hold."""
    return value if isinstance(value, (bool, int, float, str, list, dict, type(None))) else None


def keys_of(family, root):
    config = AutoConfig.for_model(family)
    keys = {field.name: plain(field.default) for field in dataclasses.fields(config)
            if field.default is not dataclasses.MISSING}
    keys |= {alias: keys.get(name) for alias, name in config.attribute_map.items()}
    sources = [root / "models" / family / f"modeling_{family}.py"]
    sources += [root / f"{name}.py" for name in SHARED if (root / f"{name}.py").exists()]
    for source in sources:
        for name in read_attributes(source.read_text(encoding="utf-8")):
            if name not in keys and not METHODS.match(name):
                keys[name] = plain(getattr(config, name, None))
    for name in legacy_keys(config):
        keys.setdefault(name, None)
    for name, default in GenerationConfig._get_default_generation_params().items():
        keys.setdefault(name, plain(default))  # legacy: generation's settings in config.json
    return dict(sorted(keys.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", type=Path, help="the file to write; default: the standard output")
    options = parser.parse_args()
    root = Path(transformers.__file__).parent
    made = {"transformers": transformers.__version__}
    for family in FAMILIES:
        importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        made[family] = keys_of(family, root)
    text = json.dumps(made, indent=1) + "\n"
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
