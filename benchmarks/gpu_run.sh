#!/usr/bin/env bash
# The open rows of GPU.md in one go: gpu_run.sh MODEL SENTENCES OUT
set -euo pipefail
model=$1 sentences=$2 out=$3
cd "$(dirname "$0")/.."
mkdir -p "$out"
python -m pytest -q -m gpu | tee "$out/pytest_gpu.txt"
python benchmarks/train_step.py --model_name_or_path "$model" --train_file "$sentences" --batch_size 64 --steps 50 \
    --warmup 10 --rounds 5 --output_json "$out/train_step_gpu.json" | tee "$out/train_step_gpu.txt"
all="simcse vadv gs_infonce dclr dcl robustsentembed"
python benchmarks/train_step.py --model_name_or_path "$model" --train_file "$sentences" --batch_size 64 --steps 20 \
    --warmup 5 --rounds 3 --systems $all --output_json "$out/train_step_methods_gpu.json"
python benchmarks/train_step.py --model_name_or_path "$model" --train_file "$sentences" --batch_size 64 --steps 3 \
    --rounds 1 --systems $all --memory --output_json "$out/memory_methods_gpu.json"
python benchmarks/noise_cost.py --output_json "$out/noise_cost_gs_gpu.json"
python benchmarks/noise_cost.py --steps 4 --output_json "$out/noise_cost_dclr_gpu.json"
for option in --bf16 --fp16; do
    name=stack-${option#--}
    python examples/run_unsup.py --method gs_infonce+dclr+vadv --dclr_complement self --model_name_or_path "$model" \
        --train_file "$sentences" --max_steps 200 --eval_tasks embedded_dev --eval_steps 100 --output_dir "$out/$name" \
        "$option" --disable_tqdm true > "$out/$name.txt" 2>&1 || echo "failed: $name" | tee -a "$out/failed.txt"
    rm -rf "$out/$name"/checkpoint-* "$out/$name"/*.safetensors "$out/$name"/robustcse
done
for option in --bf16 --fp16 --torch_compile --gradient_checkpointing; do
    name=${option#--}
    python examples/run_unsup.py --method vadv --model_name_or_path "$model" --train_file "$sentences" --max_steps 100 \
        --eval_tasks embedded_dev --eval_steps 50 --output_dir "$out/$name" "$option" --vadv_lambda 1 --disable_tqdm true \
        > "$out/$name.txt" 2>&1 || echo "failed: $option" | tee -a "$out/failed.txt"
    rm -rf "$out/$name"/checkpoint-* "$out/$name"/*.safetensors "$out/$name"/robustcse
done
if [ -n "${VICTIM:-}" ] && [ -n "${TEXTATTACK_PYTHON:-}" ]; then
    python benchmarks/attack_speed.py --textattack_python "$TEXTATTACK_PYTHON" --victim "$VICTIM" --dataset_file "$ATTACKED" \
        --examples 200 --floor --output_json "$out/attack_speed_gpu.json" | tee "$out/attack_speed_gpu.txt"
fi
if [ -n "${VICTIM:-}" ]; then
    # shellcheck disable=SC2086
    python examples/run_attack.py --model_name_or_path "$VICTIM" --task own --data_file "$ATTACKED" --attack all --bf16 \
        --num_examples 200 --width 256 ${RESOURCES:-} --output_dir "$out/attacks" > "$out/attacks.txt" 2>&1 ||
        echo "failed: attacks" | tee -a "$out/failed.txt"
fi
