// PACKED_SS_MULTIVERSION compiles a function for several x86-64 instruction sets and picks one when the library is loaded,
// so that a build stays portable. Elsewhere, and where there are no ifuncs (musl, sanitizers), it does nothing.
#pragma once

#include <climits>  // defines __GLIBC__ where the C library is glibc

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PACKED_SS_MULTIVERSION __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define PACKED_SS_MULTIVERSION
#endif
