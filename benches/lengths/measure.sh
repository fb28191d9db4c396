#!/usr/bin/env bash
# Attention against the vLSTM over the length of a text, 1,024 to 131,072 positions: times and memory of the forward pass, of all
# gradients, and of one token. Writes the records of this directory, from which `lab dev history --write` draws. Takes a GPU some
# 80 seconds, and Python with PyTorch for the libraries.
#
#     bash benches/lengths/measure.sh [the tool: target/release/lab] [--record]
#
# Results are judged on 600 positions: the reference of a longer text would take the CPU minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
tool=${1:-target/release/lab}
shift || true
attention=B=1,NH=16,NKV=16,D=128
vlstm=B=1,NH=16,DHQK=128,DHHV=256

# The family, the version, its sizes without the length, the length's name, and what else is asked for.
over_lengths() {
    "$tool" bench "$1" --version "$2" --shape "$3,$4=1024" --up-to "$4=131072" --judged-on "$3,$4=600" \
        --dtype bf16 --runs 10 --in-turns --launched --out benches/lengths "${@:5}"
}

over_lengths attention attention:v6_turns "$attention" S --peers benches/peers --library cudnn "$@"
over_lengths vlstm_fw vlstm_fw_v4:v2_segments "$vlstm" S "$@"
over_lengths attention_fwbw attention:v8_handed "$attention" S --peers benches/peers --library cudnn "$@"
over_lengths vlstm_fwbw vlstm_fwbw_v4:v2_segments "$vlstm" S "$@"
over_lengths attention_step attention:step_split "$attention" T --peers benches/peers --library sdpa "$@"
"$tool" bench vlstm_step --shape "$vlstm" --dtype bf16 --runs 50 --in-turns --launched --out benches/lengths "$@"
