#include "cpu/filters.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "cpu/vector_math.h"

namespace packed_ss::cpu {
namespace {

// The k-th largest key. At least k ids reach the k-th largest of the blocks' largest keys, so that blocks below it hold none of
// the k, and the others few ids that do. With fewer than k blocks every id is looked at.
template <class Element>
typename Element::Bits kth_largest_key(const RowView<Element>& row, std::int64_t k, Workspace<Element>& work) {
  const std::int64_t blocks = (row.vocab_size + kBlock - 1) / kBlock;
  auto& keys = work.keys;
  typename Element::Bits least = 0;
  if (k <= blocks) {
    keys.assign(row.block_keys, row.block_keys + blocks);
    std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end(), std::greater<>());
    least = keys[k - 1];
  }
  keys.clear();
  for (std::int64_t block = 0; block < blocks; ++block) {
    if (row.block_keys[block] < least) continue;
    const std::int64_t end = std::min(row.vocab_size, (block + 1) * kBlock);
    for (std::int64_t id = block * kBlock; id < end; ++id) {
      const auto key = element_key<Element>(row.logits[id]);
      if (key >= least) keys.push_back(key);
    }
  }
  std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end(), std::greater<>());
  return keys[k - 1];
}

// The last of `scores`, in descending order, before which the mass is less than `target`; `before` is the mass of what precedes
// them all and is less. Sorts them.
template <class Value>
Value last_kept(std::vector<Value>& scores, double before, double target) {
  std::sort(scores.begin(), scores.end(), std::greater<>());
  Value last = scores.front();
  for (const Value score : scores) {
    if (before >= target) break;
    last = score;
    before += exp_nonpositive(static_cast<double>(score));
  }
  return last;
}

// Masses are gathered in buckets of scaled scores, and only the bucket in which top_p is reached is sorted: there is no search
// on values that ties, adjacent floats or denormals could keep from ending. Where top-k has left little, all of it is sorted.
template <class Element>
typename Element::Value last_kept_by_top_p(const RowView<Element>& row, std::int64_t top_k, double top_p,
                                           Workspace<Element>& work) {
  constexpr std::int64_t kFew = 256;
  auto& scores = work.scores;
  scores.resize(row.vocab_size);
  if (top_k > 0 && top_k <= kFew) {
    scores.resize(kept_scores(Element{}, row, 0, kBuckets - 1, scores.data()));
    double total = 0;
    for (const auto score : scores) total += exp_nonpositive(static_cast<double>(score));
    return last_kept(scores, 0.0, top_p * total);
  }
  work.masses.assign(kBuckets, 0.0);
  add_masses(Element{}, row, work.masses.data());
  double total = 0;
  for (const double mass : work.masses) total += mass;
  const double target = top_p * total;
  double before = 0;
  int bucket = 0;
  while (bucket < kBuckets && before + work.masses[bucket] < target) before += work.masses[bucket++];
  if (bucket == kBuckets) return row.kept_from;
  scores.resize(kept_scores(Element{}, row, bucket, bucket, scores.data()));
  return last_kept(scores, before, target);
}

template <class Element>
typename Element::Value threshold(RowView<Element> row, std::int64_t top_k, double top_p, Workspace<Element>& work) {
  row.kept_from = -std::numeric_limits<typename Element::Value>::infinity();
  if (top_k > 0 && top_k < row.vocab_size) {
    row.kept_from = scaled(key_value<Element>(kth_largest_key(row, top_k, work)), row.maximum, row.temperature);
  }
  return top_p < 1 ? last_kept_by_top_p(row, top_k, top_p, work) : row.kept_from;
}

}  // namespace

#define PACKED_SS_DEFINE(Element)                                                                                              \
  Element::Value filter_threshold(Element, RowView<Element> row, std::int64_t top_k, double top_p, Workspace<Element>& work) { \
    return threshold<Element>(row, top_k, top_p, work);                                                                        \
  }
PACKED_SS_ELEMENT_TYPES(PACKED_SS_DEFINE)

}  // namespace packed_ss::cpu
