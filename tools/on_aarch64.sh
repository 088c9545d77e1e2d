#!/usr/bin/env bash
# on_aarch64.sh PIP WHEEL FOLDER PROGRAM OUTPUT: what a Python program prints that runs with an installed wheel on an
# emulated AArch64 processor.
# Python is Debian's for arm64, unpacked into the folder, so nothing of the system changes. PIP is a pip of this machine.
set -euo pipefail
pip=$1 wheel=$2 folder=$3 program=$4 output=$5
apt=$folder/apt root=$folder/root

unpack_python() {
  local package
  rm -rf "$apt" "$root"
  mkdir -p "$apt/lists/partial" "$apt/archives/partial"
  : >"$apt/status" # nothing is installed there, so everything that Python needs is downloaded
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian %s main\n' \
    "$(. /etc/os-release && echo "$VERSION_CODENAME")" >"$apt/sources.list"
  local options=(
    -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=0 -o APT::Sandbox::User=
    -o Debug::NoLocking=1 -o Dir::State="$apt" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt"
    -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=-
  )
  apt-get "${options[@]}" update
  apt-get "${options[@]}" install --yes --download-only python3 libstdc++6
  for package in "$apt"/archives/*.deb; do dpkg -x "$package" "$root.new"; done
  mv "$root.new" "$root"
}

emulated_python() { QEMU_LD_PREFIX=$root PYTHONHOME=$root/usr PYTHONPATH=$folder/site qemu-aarch64 "$root/usr/bin/python3" "$@"; }

[ -e "$root/usr/bin/python3" ] || unpack_python
rm -rf "$folder/site"
platforms=()
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do
  platforms+=(--platform "${platform}_aarch64")
done
version=$(emulated_python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$pip" install --disable-pip-version-check --target "$folder/site" --only-binary=:all: --implementation cp \
  --python-version "$version" "${platforms[@]}" "$wheel"
emulated_python "$program" >"$output"
