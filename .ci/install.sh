# Sourced by .ci/run and .ci/nightly: installs what the optional tests need ($nightly: and those of
# the night), and names the Python that install_python makes. $scratch is removed at the end.

# Builds one way, and runs the C tests among what it builds.
check_build() {                             # check_build VARIABLE=VALUE... TARGET...
    make -s "$@" && tests/run.sh $(printf '%s\n' "$@" | grep '^build/.*test_')
}

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq gcc g++ clang libclang-rt-dev libomp-dev make python3 python3-venv \
    python3-torch libopenblas0-pthread python3-matplotlib chromium openmpi-bin libopenmpi-dev \
    iproute2 qemu-user nodejs lld wasi-libc libclang-rt-dev-wasm32 gcc-mingw-w64-x86-64 \
    ${nightly:+valgrind wine64} \
    >/dev/null
# The system's python3 sees Debian's torch and matplotlib; the rest comes from pip beside it.
scratch=$(mktemp -d)
trap 'for job in $(jobs -p); do kill -- "-$job"; done 2>/dev/null; rm -rf "$scratch"' EXIT
export PYTHON=$scratch/venv/bin/python PATH=$scratch/venv/bin:$PATH
install_python() {
    /usr/bin/python3 -m venv --system-site-packages "$scratch/venv"
    pip install -q --no-compile 'transformers==4.30.2' 'tiktoken>=0.5' 'tokenizers<0.14' gguf \
        vermin markdown-it-py mdit-py-plugins latex2mathml check-jsonschema ${nightly:+ziglang}
    "$scratch/venv/bin/check-jsonschema" --builtin-schema vendor.github-workflows .github/workflows/*
}
# A data directory for tests that compare with published token counts.
[ -d ../shared/data ] && export BATCHWISE_DATA=$PWD/../shared/data
