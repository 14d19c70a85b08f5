#!/usr/bin/env bash
# make_trainers.sh PYTHON DIR RIG_VENV: an environment with Lightning, transformers and Ray Train for the tests of
# tidegauge.integrations. Its torch is the rig's, seen through a .pth line: pip must bring no other one, nor NVIDIA's
# packages (the rig's stubs stand for them), so that it installs without dependencies, from the whole list below.
set -euo pipefail
python=$1 dir=$2 rig=$3
here=$(cd "$(dirname "$0")" && pwd)
frameworks=(lightning==2.6.6 pytorch-lightning==2.6.6 transformers==5.23.0 accelerate==1.15.0 ray==2.60.0)
needed=(
  lightning-utilities torchmetrics                                          # lightning
  huggingface_hub safetensors tokenizers regex psutil                       # transformers, accelerate
  hf-xet httpx2 httpcore2 anyio h11 truststore                              # huggingface_hub
  msgpack protobuf jsonschema jsonschema-specifications referencing rpds-py attrs click  # ray
  pandas pyarrow pydantic pydantic_core annotated-types typing-inspection   # ray.train
  tensorboardX python-dateutil six tzdata                                   # ray.train, pandas
  requests certifi charset-normalizer idna urllib3 packaging PyYAML tqdm    # several
)
shopt -s nullglob
torch=("$rig"/lib/python3*/site-packages/torch)
if [ ${#torch[@]} -ne 1 ]; then
  echo "no torch in $rig: the rig comes first; say: make rig" >&2
  exit 3
fi
"$here/make_venv.sh" "$python" "$dir"
site=("$dir"/lib/python3*/site-packages)
(cd "${torch[0]%/torch}" && pwd) >"${site[0]}/_rig.pth"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
  -c "$here/../constraints.txt" "${frameworks[@]}" "${needed[@]}"
