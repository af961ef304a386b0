"""One data-parallel rank of an engine: data_parallel.py RANK SIZE PORT OPTIONS. Prints the tokens of its part of the prompts alone.

OPTIONS is a JSON object: "engine" are arguments of vllm.LLM; "half" names a rank whose experts' results are halved.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import sys

# The logs of vLLM, of its children too, go to stderr.
ANSWERS = os.dup(1)
os.dup2(2, 1)
COUNT = 12  # tokens of each answer
LENGTHS = (1, 7, 33, 100, 64)


def main() -> None:
    faulthandler.dump_traceback_later(270, exit=True)
    rank, size, port, options = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    os.environ.update(
        VLLM_DP_RANK=str(rank),
        VLLM_DP_RANK_LOCAL=str(rank),
        VLLM_DP_SIZE=str(size),
        VLLM_DP_MASTER_IP="127.0.0.1",
        VLLM_DP_MASTER_PORT=port,
        VLLM_ENABLE_V1_MULTIPROCESSING="1" if size > 1 else "0",
        HALVED=str(int(options.get("half") == rank)),
    )
    from vllm import LLM, SamplingParams

    llm = LLM(skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=8, **options["engine"])
    source = random.Random(5)
    prompts = [{"prompt_token_ids": [source.randrange(512) for _ in range(length)]} for length in LENGTHS]
    sampling = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, detokenize=False)
    outputs = llm.generate(prompts[rank::size], sampling, use_tqdm=False)  # type: ignore[arg-type]
    os.write(ANSWERS, json.dumps([list(output.outputs[0].token_ids) for output in outputs]).encode())


if __name__ == "__main__":
    main()
