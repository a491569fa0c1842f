// CPU kernels of the row operators, on plain views; free of torch. What they do is stated by their plain-torch versions in
// packed_ss/ops.
#pragma once

#include "cpu/parallel.h"
#include "packed_ss/row_calls.h"

namespace packed_ss::cpu {

void argmax_rows(const ArgmaxCall& call, const Workers& workers);
void draw_rows(const DrawCall& call, const Workers& workers);
void verify_rows(const VerifyCall& call, const Workers& workers);

}  // namespace packed_ss::cpu
