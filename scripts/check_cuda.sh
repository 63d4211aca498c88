#!/usr/bin/env bash
# What the tests cannot check without a GPU: proofs, gradients and training on CUDA.
#
#     bash scripts/check_cuda.sh [--out FOLDER] [--python PYTHON] [--list] [GROUP ...]
#
# Run it from a checkout. PYTHON (default: python3) has onnxgrad, onnxruntime-gpu and pytest; nothing is installed and
# nothing is fetched. Without a GROUP, all run. A group ends after 450 seconds; what passed is not run again, so that
# the same command goes on where the last one ended. Exit code 1: something failed or is left.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.."
GROUPS_OF_CHECKS="provider tests proofs placed always merges wrong cpu-only each gradients float16 trainer fit diverged limits ci place tune noise bench"
out=build/cuda python=python3 seconds=${CHECK_CUDA_SECONDS:-450} chosen=""
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    --list) echo "$GROUPS_OF_CHECKS"; exit 0 ;;
    -*) echo "check_cuda.sh: no option $1: see the first lines of this file" >&2; exit 2 ;;
    *)
      case " $GROUPS_OF_CHECKS " in
        *" $1 "*) chosen="$chosen $1"; shift ;;
        *) echo "check_cuda.sh: no group '$1': give one of $GROUPS_OF_CHECKS" >&2; exit 2 ;;
      esac ;;
  esac
done
mkdir -p "$out"
touch "$out/passed"
log=$out/log.txt
passed=0 failed=0 left=0 end=0

say() { echo "$*" | tee -a "$log"; }

onnxgrad() { "$python" -m onnxgrad "$@"; }

# check NAME EXIT_CODE WORDS COMMAND...: the command ends with the code and prints the words (an extended pattern)
check() {
  local name=$1 wanted=$2 words=$3 printed code rest=$((end - SECONDS))
  shift 3
  if grep -qxF -- "$name" "$out/passed"; then
    passed=$((passed + 1))
    return
  fi
  if [ "$rest" -lt 1 ]; then
    left=$((left + 1))
    say "LEFT $name: the group has had its $seconds seconds; run it again"
    return
  fi
  printed=$(timeout "$rest" "$@" 2>&1)
  code=$?
  printf '=== %s\n%s\nexit code %s\n' "$name" "$printed" "$code" >>"$log"
  if [ "$code" = 124 ]; then
    left=$((left + 1))
    say "LEFT $name: not finished in the $rest seconds that its group had left"
  elif [ "$code" = "$wanted" ] && grep -qE -- "$words" <<<"$printed"; then
    passed=$((passed + 1))
    echo "$name" >>"$out/passed"
    say "PASS $name"
  else
    failed=$((failed + 1))
    say "FAIL $name (exit code $code, wanted $wanted and /$words/): $(tail -1 <<<"$printed" | cut -c1-200)"
  fi
}

command_line() { check "$1" "$2" "$3" "$python" -m onnxgrad "${@:4}"; }
script() { check "$1" "$2" "$3" "$python" scripts/cuda_checks.py "${@:4}"; }

provider() { command_line provider 0 'cuda +yes' doctor; }

tests() { check tests 0 '[0-9]+ passed' "$python" -m pytest -q -m cuda tests; }

proofs() {
  local model
  for model in models/*.onnx; do
    command_line "proofs $(basename "$model" .onnx)" 0 'equal on cuda' \
      optimize "$model" -o "$out/o.onnx" --provider cuda --timeout 600
  done
}

placed() {
  local name
  for name in bert unet gpt2 googlenet; do
    command_line "placed $name" 0 '[0-9]+ on CUDAExecutionProvider' \
      optimize "models/$name.onnx" -o "$out/o.onnx" --provider cuda
  done
}

always() {
  local name
  for name in bert unet vit lstmcell googlenet; do
    command_line "always $name" 0 'equal on cuda' \
      optimize "models/$name.onnx" -o "$out/o.onnx" --provider cuda --merge always --allow-growth
  done
}

# whether the merges that are the default on CUDA pay, model by model; by shape: scripts/bench_products.py
merges() {
  local name way
  for name in bert unet gpt2 vit; do
    for way in auto never; do
      onnxgrad optimize "models/$name.onnx" -o "$out/$name.$way.onnx" --provider cuda --merge $way -q >>"$log" 2>&1
    done
    command_line "merges $name" 0 'wall ratio' \
      bench "$out/$name.never.onnx" "$out/$name.auto.onnx" --provider cuda --require 1.00
  done
}

wrong() {
  script "wrong model" 0 wrote wrong "$out/wrong.onnx"
  command_line wrong 1 'different on cuda|DIFFERENT' verify models/lstmcell.onnx "$out/wrong.onnx" --provider cuda
}

# its only node with a CUDA kernel does nothing, and is removed
cpu-only() {
  script "cpu-only model" 0 wrote tree "$out/tree.onnx"
  command_line cpu-only 0 'equal|not proved' optimize "$out/tree.onnx" -o "$out/o.onnx" --provider cuda
}

each() {
  command_line each 0 'equal on cuda' \
    optimize models/bert.raw.onnx -o "$out/o.onnx" --provider cuda --verify each --timeout 400
}

gradients() {
  local name
  for name in mlp cnn bert gpt2 llama vit resnet18 unet lstm_tagger gru_tagger; do
    command_line "gradients $name" 0 'gradient agrees' grad "models/training/$name.onnx" \
      -o "$out/g.onnx" --wrt params --target loss --provider cuda --timeout 400
  done
  command_line "gradients checkpointed" 0 'gradient agrees' grad models/training/gpt2.onnx \
    -o "$out/g.onnx" --wrt params --target loss --checkpoint auto --provider cuda
}

float16() {
  command_line "float16" 0 . float16 models/vit.onnx -o "$out/h.onnx" --provider cuda
  command_line "float16 on cuda" 0 'equal|within|cosine' \
    verify models/vit.onnx "$out/h.onnx" --provider cuda --metric cosine=0.999
}

trainer() {
  local name
  for name in mlp cnn bert resnet18_train; do script "trainer $name" 0 'trained on cuda' train "$name"; done
}

fit() {
  script "fit data" 0 wrote data "$out/mlp.npz"
  command_line fit 0 . fit models/training/mlp.onnx --data "$out/mlp.npz" -o "$out/f.onnx" \
    --provider cuda --epochs 2 --loss loss
}

diverged() { script diverged 0 'as before' diverged; }

# CUDA's context takes gigabytes of the host's memory as well
limits() {
  local gb
  for gb in 2 4; do
    command_line "limits $gb GB" 0 'equal on cuda' \
      optimize models/lstmcell.onnx -o "$out/o.onnx" --provider cuda --max-memory ${gb}GB --timeout 60
  done
}

ci() {
  printf 'require = { latency = "<= 1.05" }\n[verify]\nprovider = "cuda"\n[ci]\nmodels = ["%s/models/lstmcell.onnx"]\nout = "ci/{name}.onnx"\n' "$PWD" >"$out/ci.toml"
  command_line ci 0 '[Ww]all' ci "$out/ci.toml"
}

place() { command_line place 0 copies place models/bert.onnx --device 'cuda=op:MatMul' -o "$out/p.onnx"; }

tune() {
  command_line tune 0 'equal on cuda' \
    optimize models/vit.onnx -o "$out/t.onnx" --provider cuda --tune --tune-time 60
}

# cuDNN chooses its algorithms anew, and atomics add in any order: each proof must pass
noise() {
  local i
  for i in $(seq 20); do
    command_line "noise $i" 0 'equal on cuda' optimize models/googlenet.onnx -o "$out/o.onnx" --provider cuda
  done
}

# records: merges by shape, then gradients and training steps beside PyTorch; they need a Python with torch
bench() {
  local name precision
  check "bench products" 0 '\|' "$python" scripts/bench_products.py --provider cuda --write
  for name in bert_base gpt2_small vit_b resnet50; do
    for precision in float32 tf32 float16; do
      check "bench $name $precision" 0 '\|' \
        "$python" scripts/bench_cuda.py "$name" --precision "$precision" --record "$out/bench.md"
    done
  done
}

for group in ${chosen:-$GROUPS_OF_CHECKS}; do
  end=$((SECONDS + seconds))
  "$group"
done
say "$passed passed, $failed failed, $left left; log in $log"
[ $((failed + left)) = 0 ]
