// Checks of tensors that operators share, each a ValueError in Python: one sentence that names the operator and the argument.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>

#include "packed_ss/views.h"

namespace packed_ss {

// Checks tensors of one operator, all on one device.
class TensorChecks {
 public:
  TensorChecks(const char* op, at::Device device) : op_(op), device_(device) {}

  // Refuses another dtype or shape than `sizes` (what they stand for in `meaning`), or memory that is not contiguous.
  void tensor(const char* name, const at::Tensor& t, at::ScalarType dtype, at::IntArrayRef sizes, const char* meaning) const {
    TORCH_CHECK_VALUE(t.scalar_type() == dtype && t.sizes() == sizes && t.is_contiguous() && t.device() == device_, op_, ": ",
                      name, " must be contiguous ", dtype, " ", meaning, " = ", sizes, " on ", device_, ", got ",
                      t.is_contiguous() ? "" : "non-contiguous ", t.scalar_type(), " ", t.sizes(), " on ", t.device(), ".");
  }

  // The same for an int32 matrix whose number of columns is free but for its minimum; of rows too, where `rows` is negative.
  void matrix(const char* name, const at::Tensor& t, std::int64_t rows, std::int64_t least_columns, const char* meaning) const {
    const bool fits = t.dim() == 2 && (rows < 0 || t.size(0) == rows) && t.size(1) >= least_columns;
    TORCH_CHECK_VALUE(t.scalar_type() == at::kInt && fits && t.is_contiguous() && t.device() == device_, op_, ": ", name,
                      " must be contiguous Int ", meaning, " on ", device_, ", got ", t.is_contiguous() ? "" : "non-contiguous ",
                      t.scalar_type(), " ", t.sizes(), " on ", t.device(), ".");
  }

 protected:
  const char* op_;
  at::Device device_;
};

inline std::int32_t* written(const at::Tensor& t) { return t.mutable_data_ptr<std::int32_t>(); }
inline const std::int32_t* read(const at::Tensor& t) { return t.const_data_ptr<std::int32_t>(); }

// Refuses what no operator takes as logits [N, rows, V].
void check_logits(const char* op, const at::Tensor& logits);
Logits logits_view(const at::Tensor& logits);

}  // namespace packed_ss
