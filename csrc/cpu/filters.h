// Top-k and top-p as one threshold on a row's scaled scores; free of torch.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/row_kernels.h"

namespace packed_ss::cpu {

// Scratch memory of one thread, kept from row to row.
template <class Element>
struct Workspace {
  std::vector<typename Element::Bits> block_keys;
  std::vector<typename Element::Bits> keys;
  std::vector<typename Element::Value> scores;
  std::vector<double> masses;
};

// The least scaled score that is kept. Tokens tied with the last kept one are kept. `row` has its keys, maximum and temperature.
//   top_k: the k largest logits; 0 and less, or V and more, is all.
//   top_p: of those, the shortest head of the descending order with at least this mass, which is added up in float64; 1 and more
//   is all, 0 and less the largest.
#define PACKED_SS_DECLARE(Element) \
  Element::Value filter_threshold(Element, RowView<Element> row, std::int64_t top_k, double top_p, Workspace<Element>& work);
PACKED_SS_ELEMENT_TYPES(PACKED_SS_DECLARE)
#undef PACKED_SS_DECLARE

}  // namespace packed_ss::cpu
