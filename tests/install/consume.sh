#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Installs a build into a tree of its own and builds a foreign project against it, once through
# CMake's find_package and once with nothing but a compiler and pkg-config.
# usage: consume.sh BUILD_DIR CONFIG WORK_DIR COMPILER install TREE
#        consume.sh BUILD_DIR CONFIG WORK_DIR COMPILER cmake|pkg_config TREE LIBRARY
#        consume.sh BUILD_DIR CONFIG WORK_DIR COMPILER subdirectory
# TREE: both (everything) or static (headers and the static library only). LIBRARY: static|shared.
set -eu

source_dir=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
build_dir=$1
config=$2
work_dir=$3
compiler=$4
how=$5
tree=${6:-}
library=${7:-}
prefix=$work_dir/tree-$tree

# Check that the program $1 was linked the way the case says, then run it.
run_consumer() {
    needed=$(readelf -d "$1" | grep -c 'NEEDED.*libpagedkv\.so\.0\.1' || true)
    case $library in
    shared) [ "$needed" -eq 1 ] || { echo "$1 does not need libpagedkv.so.0.1" >&2; exit 1; } ;;
    static) [ "$needed" -eq 0 ] || { echo "$1 needs the shared library" >&2; exit 1; } ;;
    esac
    "$1"
}

# Configure and build the foreign project in $1 with the CMake arguments that follow.
build_consumer() {
    rm -rf "$1"
    folder=$1
    shift
    cmake -S "$source_dir" -B "$folder" -DCMAKE_C_COMPILER="$compiler" "$@"
    cmake --build "$folder"
}

case $how in
install)
    # Installed in one place and moved to another: the tree must not remember where it was.
    rm -rf "$prefix" "$prefix-first"
    if [ "$tree" = both ]; then
        cmake --install "$build_dir" --config "$config" --prefix "$prefix-first"
    else
        cmake --install "$build_dir" --config "$config" --prefix "$prefix-first" --component headers
        cmake --install "$build_dir" --config "$config" --prefix "$prefix-first" --component static
    fi
    mv "$prefix-first" "$prefix"
    ;;
cmake)
    folder=$work_dir/cmake-$tree-$library
    absent=
    [ "$tree" = both ] || absent=shared
    is_shared=OFF
    [ "$library" = static ] || is_shared=ON
    build_consumer "$folder" -DCMAKE_PREFIX_PATH="$prefix" -DBUILD_SHARED_LIBS=$is_shared \
        -DPAGEDKV_COMPONENT="$library" -DPAGEDKV_ABSENT="$absent"
    run_consumer "$folder/consumer"
    ;;
pkg_config)
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name pagedkv.pc)")
    export PKG_CONFIG_PATH
    linkage=
    [ "$library" = shared ] || linkage=--static
    program=$work_dir/consumer-$tree-$library
    # Word splitting is meant: pkg-config prints a list of arguments.
    # shellcheck disable=SC2046
    "$compiler" -std=c11 -o "$program" "$source_dir/consumer.c" \
        $(pkg-config $linkage --cflags --libs pagedkv)
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir pagedkv)
    export LD_LIBRARY_PATH
    run_consumer "$program"
    ;;
subdirectory)
    library=static
    build_consumer "$work_dir/subdirectory" -DPAGEDKV_SOURCE_DIR="$source_dir/../.."
    run_consumer "$work_dir/subdirectory/consumer"
    ;;
*)
    echo "consume.sh: unknown '$how'" >&2
    exit 2
    ;;
esac
