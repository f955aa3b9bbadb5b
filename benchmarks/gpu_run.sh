#!/usr/bin/env bash
# The rows of GPU.md, in stages that each fit a call of ten minutes: bash benchmarks/gpu_run.sh STAGE ...
#
#   probe        what is installed, what is missing; run this first
#   tests        the tests that need a GPU
#   speed        gpu_speed.py in bf16, not compiled: every method and the peers, BERT-base's shape
#   speed-compiled   the same with torch.compile, into the same file
#   speed-float  the same in fp32 and tf32, not compiled
#   steps        train_step.py in fp32 on MODEL: simcse and vadv against the MNRL trainer, then every method
#   memory       memory.py: peak memory of every method on MODEL; noise negatives against broadcasting
#   precision    short trainings in bf16, fp16, with torch.compile and with gradient checkpointing
#   train        METHODS x SEEDS on SENTENCES from MODEL, the checkpoint chosen on STS-B dev: the methods side by side
#   attacks      PWWS beside TextAttack, and all recipes in bf16, on VICTIM
#   study        STUDY on MODEL and SENTENCES: every method tuned, trained, judged; as many calls as it takes, the
#                models stay in STUDY_DIR, and OUT/study.json has what is finished
#
# What is finished in OUT is not run again, so a stage that was cut goes on with the same command. A row that fails is
# named in OUT/failed.txt and the next one runs; the exit code is 1 if there was one. No row needs a network. The
# package is used from this checkout; its requirements have to be installed, or lie as wheel files in WHEELS. Relative
# paths begin at the root of the checkout.
#
#   OUT          folder for results and logs (gpu-results)
#   MODEL        a pretrained encoder, folder or Hub id (the embedded one). A large one travels as half:
#                AutoModel.from_pretrained(MODEL, dtype="bfloat16").save_pretrained(FOLDER), and its tokenizer;
#                training loads it in float32 whatever its weights are stored in
#   SENTENCES    a text file, one sentence a line, .gz or not (the embedded corpus)
#   STS_DIR      folder with STS-B, see docs/evaluation.md (the embedded dev set chooses the checkpoint without it)
#   LIMIT        seconds of this call (540): no row starts in the last half minute; one that still runs ten seconds
#                before the end is stopped, and killed if it has not ended, its checkpoint written, half a minute later
#   PYTHON       the interpreter (python)
#   WHEELS       folder of wheel files: installed into a folder of their own by pip --no-index before the first stage
#   METHODS      of train (simcse vadv dclr gs_infonce), one process each, all at once
#   SEEDS        of train (0 1 2), one after the other
#   TRAIN        options of train (batch 64, length 32, 1500 steps, bf16)
#   MEMORY_GIB   of memory: what a cell may need (70)
#   KEEP_WEIGHTS 1: leave the trained models in OUT
#   VICTIM, ATTACKED, RESOURCES, ATTACKS   of attacks: a classifier, its examples (label, text), the options of the
#                resources, and the recipes (all)
#   STUDY        of study: its file (benchmarks/study_gpu.yaml), JOBS (6) processes at a time, STUDY_DIR (runs/study)
#   DATA_DIR     of study: folder with sts/, transfer/, attack/ and lexicon/
#   TEXTATTACK_PYTHON   an interpreter with textattack==0.3.11
#   GPU_RUN_TOY  1: next to nothing of every stage, on the CPU, to see that it runs
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
OUT=${OUT:-gpu-results} PYTHON=${PYTHON:-python} LIMIT=${LIMIT:-540} toy=${GPU_RUN_TOY:-}
cd "$here" || exit 1
MODEL=${MODEL:-hf_robustcse/assets/encoder} SENTENCES=${SENTENCES:-hf_robustcse/assets/corpus.txt.gz}
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
SECONDS=0
left() { echo $((LIMIT - SECONDS - 10)); }

# row NAME COMMAND ...: run a command once, its output in OUT/NAME.txt
row() {
    local name=$1
    shift
    if [ -e "$OUT/$name.done" ]; then
        echo "done before: $name"
        return
    fi
    if [ "$(left)" -lt 20 ]; then
        echo "out of time: $name is left for the next call"
        return
    fi
    echo "$name ..."
    timeout -k 30 "$(left)" "$@" > "$OUT/$name.txt" 2>&1
    local code=$?
    if [ $code = 0 ]; then
        touch "$OUT/$name.done"
    else
        echo "failed: $name, code $code (124: out of time), see $name.txt" | tee -a "$OUT/failed.txt"
    fi
    tail -n "${LINES_SHOWN:-6}" "$OUT/$name.txt"
}

# small OPTIONS ...: what a row has in toy size, and nothing otherwise
small() { if [ -n "$toy" ]; then echo "$@"; fi; }
# pick TOY FULL: one of them
pick() { if [ -n "$toy" ]; then echo "$1"; else echo "$2"; fi; }

stage_probe() {
    LINES_SHOWN=40 row probe "$PYTHON" - << 'END'
import importlib, importlib.metadata, platform
import torch
print("python", platform.python_version(), platform.machine())
print("torch", torch.__version__, "cuda", torch.version.cuda, "available", torch.cuda.is_available())
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    print("device", p.name, f"{p.total_memory / 2**30:.0f} GiB, compute {p.major}.{p.minor}")
    print("bf16", torch.cuda.is_bf16_supported())
lines, inside = open("setup.cfg").read().splitlines(), False
missing = []
for line in lines:
    if line.startswith("install_requires"):
        inside = True
    elif inside and not line.startswith(" "):
        break
    elif inside:
        name, _, least = line.strip().partition(" >= ")
        try:
            print(name, importlib.metadata.version(name), f"(at least {least})")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
for name in ("pytest", "matplotlib", "triton", "nltk", "textattack"):
    try:
        print(name, importlib.metadata.version(name), "(optional)")
    except importlib.metadata.PackageNotFoundError:
        print(name, "is not there (optional)")
try:
    importlib.import_module("hf_robustcse.trainer")
    print("hf_robustcse can be imported")
except ImportError as error:
    print(f"hf_robustcse cannot be imported: {error}")
if missing:
    print("MISSING:", *missing, "- bring wheels in a folder: pip download --no-deps -d FOLDER", *missing)
END
    rm -f "$OUT/probe.done" # another machine may be another
}

stage_tests() {
    # shellcheck disable=SC2046
    row tests "$PYTHON" -m pytest -q -m gpu $(small --collect-only tests/test_functional.py)
}

# speed ROW FILE OPTION ...
speed() {
    local name=$1 file=$2
    shift 2
    # shellcheck disable=SC2046
    LINES_SHOWN=60 row "$name" "$PYTHON" benchmarks/gpu_speed.py --train_file "$SENTENCES" --output_json "$OUT/$file" \
        --seconds "$(($(left) - 20))" "$@" \
        $(small --device cpu --layers 1 --width 32 --vocabulary 10000 --batch_sizes 4 --steps 1 --warmup 1 --rounds 1)
    if grep -q "^out of time" "$OUT/$name.txt" 2> /dev/null; then rm -f "$OUT/$name.done"; fi
}

stage_speed() { speed speed speed_bf16.json --precisions bf16 --torch_compile no; }
# A compiler for the CPU takes minutes: the toy compiles nothing.
stage_speed-compiled() { speed speed-compiled speed_bf16.json --precisions bf16 --torch_compile "$(pick no yes)"; }
# shellcheck disable=SC2046
stage_speed-float() { speed speed-float speed_float.json --precisions $(pick fp32 "fp32 tf32") --torch_compile no; }

all="simcse vadv gs_infonce dclr dcl robustsentembed"

stage_steps() {
    # shellcheck disable=SC2046
    row train_step "$PYTHON" benchmarks/train_step.py --model_name_or_path "$MODEL" --train_file "$SENTENCES" \
        --batch_size 64 --steps 50 --warmup 10 --rounds 5 --output_json "$OUT/train_step_gpu.json" \
        $(small --batch_size 4 --steps 1 --warmup 1 --rounds 1)
    # shellcheck disable=SC2046,SC2086
    row train_step_methods "$PYTHON" benchmarks/train_step.py --model_name_or_path "$MODEL" --train_file "$SENTENCES" \
        --batch_size 64 --steps 20 --warmup 5 --rounds 3 --systems $all --output_json "$OUT/train_step_methods_gpu.json" \
        $(small --batch_size 4 --steps 1 --warmup 1 --rounds 1)
}

stage_memory() {
    # shellcheck disable=SC2046
    row memory_methods "$PYTHON" benchmarks/memory.py --model_name_or_path "$MODEL" --train_file "$SENTENCES" --bf16 \
        --limit_gib "${MEMORY_GIB:-70}" --output_json "$OUT/memory_gpu.json" \
        $(small --batches 4 --large 0 --methods simcse)
    # shellcheck disable=SC2046
    row noise_cost_gs "$PYTHON" benchmarks/noise_cost.py --output_json "$OUT/noise_cost_gs_gpu.json" \
        $(small --batch_size 8 --width 8 --rounds 1 --repeats 1)
    # shellcheck disable=SC2046
    row noise_cost_dclr "$PYTHON" benchmarks/noise_cost.py --steps 4 --output_json "$OUT/noise_cost_dclr_gpu.json" \
        $(small --batch_size 8 --width 8 --rounds 1 --repeats 1)
}

# train_short NAME METHOD STEPS OPTION ...: a run whose results are kept and whose weights are not
train_short() {
    local name=$1 method=$2 steps=$3
    shift 3
    # shellcheck disable=SC2046
    row "$name" "$PYTHON" examples/run_unsup.py --method "$method" --model_name_or_path "$MODEL" --train_file "$SENTENCES" \
        --max_steps "$steps" --eval_tasks embedded_dev --eval_steps $((steps / 2)) --output_dir "$OUT/$name" \
        --overwrite_output_dir true --disable_tqdm true "$@" \
        $(small --use_cpu true --per_device_train_batch_size 4 --max_seq_length 8 --max_train_samples 64)
    lighten "$OUT/$name"
}

# lighten FOLDER: leave results and logs
lighten() {
    if [ -z "${KEEP_WEIGHTS:-}" ] && [ -d "$1" ]; then
        find "$1" -type d -name 'checkpoint-*' -prune -exec rm -rf {} +
        find "$1" -type d -name robustcse -prune -exec rm -rf {} +
        find "$1" -type f \( -name '*.safetensors' -o -name 'tokenizer*' -o -name 'vocab*' \) -delete
    fi
}

stage_precision() {
    local option options="--bf16 --fp16 --torch_compile --gradient_checkpointing"
    for option in --bf16 --fp16; do
        if [ -n "$toy" ] && [ "$option" = --fp16 ]; then continue; fi # no fp16 on a CPU
        train_short "stack-${option#--}" gs_infonce+dclr+vadv "$(pick 2 200)" "$option" --dclr_complement self
    done
    if [ -n "$toy" ]; then options=--gradient_checkpointing; fi
    for option in $options; do
        train_short "${option#--}" vadv "$(pick 2 100)" "$option" --vadv_lambda 1
    done
}

stage_train() {
    local method dev=(--eval_tasks embedded_dev)
    if [ -n "${STS_DIR:-}" ]; then dev=(--eval_tasks stsb_dev --eval_data_dir "$STS_DIR"); fi
    TRAIN=${TRAIN:---per_device_train_batch_size 64 --max_seq_length 32 --max_steps 1500 --eval_steps 125 --bf16}
    if [ -n "$toy" ]; then
        TRAIN="--per_device_train_batch_size 4 --max_seq_length 8 --max_steps 2 --eval_steps 1 --max_train_samples 64"
    fi
    for method in ${METHODS:-simcse vadv dclr gs_infonce}; do
        local again=(--overwrite_output_dir true) # what a run of before left goes on, finished seeds stay
        if compgen -G "$OUT/train/$method/seed-*" > /dev/null; then again=(--resume_from_checkpoint last); fi
        # shellcheck disable=SC2086
        row "train-$method" "$PYTHON" examples/run_unsup.py --method "$method" --model_name_or_path "$MODEL" \
            --train_file "$SENTENCES" "${dev[@]}" --seeds ${SEEDS:-0 1 2} --output_dir "$OUT/train/$method" \
            "${again[@]}" --disable_tqdm true $TRAIN &
    done
    wait
    for method in ${METHODS:-simcse vadv dclr gs_infonce}; do
        if [ -e "$OUT/train-$method.done" ]; then lighten "$OUT/train/$method"; fi
    done
    "$PYTHON" -m hf_robustcse.cli report "$OUT/train" --output_dir "$OUT/report" > "$OUT/train.txt" 2>&1
    tail -n 20 "$OUT/train.txt"
}

stage_attacks() {
    if [ -z "${VICTIM:-}" ] || [ -z "${ATTACKED:-}" ]; then
        echo "attacks needs VICTIM, a classifier, and ATTACKED, its examples; see the top of this file"
        return
    fi
    if [ -n "${TEXTATTACK_PYTHON:-}" ]; then
        row attack_speed "$PYTHON" benchmarks/attack_speed.py --textattack_python "$TEXTATTACK_PYTHON" --victim "$VICTIM" \
            --dataset_file "$ATTACKED" --examples 100 --chunk 20 --floor --output_json "$OUT/attack_speed_gpu.json"
    fi
    # shellcheck disable=SC2046,SC2086
    row attacks "$PYTHON" examples/run_attack.py --model_name_or_path "$VICTIM" --task own --data_file "$ATTACKED" \
        --attack ${ATTACKS:-all} --bf16 --num_examples 200 --width 256 ${RESOURCES:-} --output_dir "$OUT/attacks" \
        $(small --num_examples 2)
}

stage_study() {
    if [ -z "${DATA_DIR:-}" ]; then
        echo "study needs DATA_DIR, the folder of its evaluation data; see the top of this file"
        return
    fi
    local study=("$PYTHON" -m benchmarks.study "${STUDY:-benchmarks/study_gpu.yaml}" --output_dir "${STUDY_DIR:-runs/study}"
        --model_name_or_path "$MODEL" --train_file "$SENTENCES" --data_dir "$DATA_DIR")
    row study "${study[@]}" --jobs "${JOBS:-6}" --minutes "$((($(left) - 90) / 60))" # 90 s for the cells that run then
    if grep -q "^out of time" "$OUT/study.txt" 2> /dev/null; then rm -f "$OUT/study.done"; fi
    if [ -e "${STUDY_DIR:-runs/study}/judged/untrained.json" ]; then
        row study-figures "${study[@]}" --collect "$OUT/study.json"
        rm -f "$OUT/study-figures.done" # there is more of them after each call
    fi
}

if [ $# = 0 ]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$here/benchmarks/gpu_run.sh"
    exit 2
fi
for stage in "$@"; do
    if ! declare -F "stage_$stage" > /dev/null; then
        echo "error: there is no stage $stage; stages: probe tests speed speed-compiled speed-float steps memory precision train attacks study" >&2
        exit 2
    fi
done
mkdir -p "$OUT" || exit 1
rm -f "$OUT/failed.txt"
if [ -n "${WHEELS:-}" ]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl || exit 1
    export PYTHONPATH="$PYTHONPATH:$site"
fi
for stage in "$@"; do
    echo "== $stage"
    "stage_$stage"
done
echo "results are in $OUT"
if [ -s "$OUT/failed.txt" ]; then
    cat "$OUT/failed.txt"
    exit 1
fi
