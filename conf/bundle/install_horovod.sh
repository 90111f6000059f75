#!/usr/bin/env bash
# Builds Horovod 0.28.1 against the torch that is already installed.
# Called by "make setup", and by Databricks as the init script of the training cluster.
#
# Horovod's sdist asks for C++14 and torch's headers need C++17, so the compiler is
# called through a wrapper that rewrites the standard. Gloo only: no MPI, no nvcc.
set -euo pipefail

python="${1:-/databricks/python/bin/python}"
compiler="${CXX:-g++}"
wrapper_dir="$(mktemp -d)"
trap 'rm -rf "$wrapper_dir"' EXIT

cat > "$wrapper_dir/c++17" <<WRAPPER
#!/usr/bin/env bash
arguments=()
for argument in "\$@"; do
  case "\$argument" in
    -std=c++11|-std=gnu++11|-std=c++14|-std=gnu++14) argument=-std=gnu++17 ;;
  esac
  arguments+=("\$argument")
done
exec $compiler "\${arguments[@]}"
WRAPPER
chmod +x "$wrapper_dir/c++17"

# A wheel cached from a build against another torch would load and then crash: no cache.
export PATH="$(dirname "$python"):$PATH"
export CXX="$wrapper_dir/c++17"
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1
export MAKEFLAGS="-j$(nproc)"
"$python" -m pip install --quiet --no-cache-dir --no-build-isolation --no-deps horovod==0.28.1
"$python" -c "import horovod.torch"
