"""Families of models that are known to work, by `model_type`; others are served where the check at load passes."""

DENSE = (
    *("apertus", "arcee", "biogpt", "cohere", "cohere2", "ctrl", "cwm", "ernie4_5", "exaone4", "gemma", "gemma2"),
    *("gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "helium", "hunyuan_v1_dense"),
    *("llama", "ministral", "mistral", "nemotron", "olmo", "olmo2", "olmo3", "opt", "persimmon", "phi", "phi3"),
    *("qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2", "vaultgemma"),
)
EXPERTS = (
    *("afmoe", "cohere2_moe", "ernie4_5_moe", "exaone_moe", "flex_olmo", "glm4_moe", "granitemoe", "minimax_m2"),
    *("mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"),
)
"""Mixtures of experts, whose rows depend on the batch."""
UNSUPPORTED = {
    "its attention has sinks, which are not computed here": (
        *("deepseek_v4", "flint", "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash"),
    ),
    "its attention chooses the keys that a query sees, which is not computed here": (
        *("axk2", "deepseek_v32", "doge", "glm_moe_dsa", "hy_v4"),
    ),
    "some of its attention layers run twice for a token": ("diffllama", "hrm_text"),
    "its positions are not counted from 0, or not given to it": (
        *("bart", "blenderbot", "blenderbot-small", "bigbird_pegasus", "camembert", "data2vec-text", "marian", "mbart"),
        *("pegasus", "plbart", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    ),
    "its code in transformers computes attention by itself": (
        *("big_bird", "bloom", "codegen", "cpmant", "gpt_neox_japanese", "gptj", "megatron-bert", "mpt", "mvp"),
        *("openai-gpt", "rembert", "roformer", "trocr", "xglm", "xlm"),
    ),
}
"""Why families cannot be served, which are refused before their weights are read."""
ADVICE = (
    f"{len(DENSE + EXPERTS)} families are known to work, such as llama, qwen3 and gemma3_text:  lmtool docs serving"
)
