"""Run by lm-evaluation-harness's Python: a small task of its own making, by a server and by transformers.

Arguments: base URL of `/v1`, model folder. Writes each log-likelihood of both as JSON.
"""

import json
import sys
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

QUESTIONS = [
    ("The capital of France is", ["Paris", "Rome", "Oslo"], 0),
    ("The capital of Italy is", ["Paris", "Rome", "Oslo"], 1),
    ("Once upon a time there was a", ["fox", "dog", "river"], 0),
    ("One and one is", ["two", "three", "seven"], 0),
]
TASK = """
task: small
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""


def evaluated(model, arguments, folder):
    result = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=["small"], task_manager=TaskManager(include_path=folder), batch_size=1,
        bootstrap_iters=0, verbosity="ERROR",
    )  # fmt: skip
    samples = sorted(result["samples"]["small"], key=lambda sample: sample["doc_id"])
    return [[float(logprob), bool(greedy)] for sample in samples for logprob, greedy in sample["filtered_resps"]]


def main(base, model):
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "small.jsonl")
        rows = [{"question": question, "choices": choices, "answer": answer} for question, choices, answer in QUESTIONS]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path(folder, "small.yaml").write_text(TASK.format(data=data))
        common = f"tokenizer={model}"
        found = {
            "server": evaluated(
                "local-completions", f"model=lmtool-tiny,base_url={base}/completions,{common},max_length=512", folder
            ),
            "transformers": evaluated("hf", f"pretrained={model},dtype=float32,device=cpu,{common}", folder),
        }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


main(*sys.argv[1:])
