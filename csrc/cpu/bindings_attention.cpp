// Torch's side of the CPU kernels of rope_store and tail_attention: checks, allocation, threads.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cpu/rope_store.h"
#include "cpu/tail_attention.h"
#include "ops.h"

namespace packed_ss::cpu {
namespace {

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return DType::kFloat64;
    case at::kBFloat16: return DType::kBFloat16;
    case at::kHalf: return DType::kFloat16;
    default: return DType::kFloat32;
  }
}

// The instruction set that torch's own kernels use, so that ATEN_CPU_CAPABILITY chooses for both.
InstructionSet instruction_set() {
  const std::string name = at::get_cpu_capability();
  return name.starts_with("AVX512") ? InstructionSet::kAvx512
         : name == "AVX2"           ? InstructionSet::kAvx2
                                    : InstructionSet::kPortable;
}

at::Tensor with_contiguous_heads(const at::Tensor& rows) { return rows.stride(3) == 1 ? rows : rows.contiguous(); }

constexpr std::int64_t round_up(std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; }

// How the lanes of a key/value head, and the keys, are shared out.
struct Plan {
  std::int64_t tiles, lanes_per_tile, splits, blocks_per_split;

  Plan(const TailAttention& args, std::int64_t lanes, std::int64_t longest, std::int64_t threads) {
    // A tile's queries and sums fit a second-level cache. More tiles pack the same keys again, so they pay down to kFewestLanes;
    // past that the keys are split, which costs a state each.
    constexpr std::int64_t kMostLanes = 256, kFewestLanes = 64, kLaneStep = 32, kBlocksWorthASplit = 8;
    const std::int64_t heads = args.sequences * args.kv_heads, blocks = round_up(longest, kKeyBlock) / kKeyBlock;
    tiles = (lanes + kMostLanes - 1) / kMostLanes;
    while (heads * tiles < threads && lanes > 2 * tiles * kFewestLanes) tiles *= 2;
    lanes_per_tile = round_up((lanes + tiles - 1) / tiles, kLaneStep);
    tiles = (lanes + lanes_per_tile - 1) / lanes_per_tile;
    splits = std::max<std::int64_t>(1, std::min((threads + heads * tiles - 1) / (heads * tiles), blocks / kBlocksWorthASplit));
    blocks_per_split = (blocks + splits - 1) / splits;
  }
};

}  // namespace

at::Tensor tail_attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache, const at::Tensor& cache_len,
                          const at::Tensor& tail_mask, double scale) {
  check_tail_attention(q, k_cache, v_cache, cache_len, tail_mask);
  const at::Tensor queries = with_contiguous_heads(q), lengths = cache_len.contiguous(), mask = tail_mask.contiguous();
  at::Tensor out = at::empty(q.sizes(), q.options().memory_format(at::MemoryFormat::Contiguous));
  const TailAttention args{dtype_of(q),
                           queries.const_data_ptr(),
                           queries.stride(0),
                           queries.stride(1),
                           queries.stride(2),
                           k_cache.const_data_ptr(),
                           k_cache.stride(0),
                           k_cache.stride(1),
                           v_cache.const_data_ptr(),
                           v_cache.stride(0),
                           v_cache.stride(1),
                           lengths.const_data_ptr<std::int32_t>(),
                           mask.const_data_ptr<std::int32_t>(),
                           mask.size(0) == 1 ? 0 : mask.stride(0),
                           out.mutable_data_ptr(),
                           q.size(0),
                           q.size(1),
                           q.size(2),
                           k_cache.size(2),
                           q.size(3),
                           k_cache.size(1),
                           mask.size(2),
                           scale};
  if (out.numel() == 0) return out;

  std::vector<std::int64_t> ends(static_cast<std::size_t>(args.sequences));
  std::int64_t longest = 0, slots = 0;
  for (std::int64_t n = 0; n < args.sequences; ++n) {
    TORCH_CHECK_VALUE(args.cache_len[n] >= 0 && args.cache_len[n] <= args.slots, "tail_attention: cache_len must be in 0 ... ",
                      args.slots, ", the slots of k_cache, got ", args.cache_len[n], ".");
    ends[n] = visible_end(args, n);
    longest = std::max(longest, ends[n]);
    slots += ends[n];
  }

  static const TailAttentionKernel& kernel = tail_attention_kernel(instruction_set());
  const std::int64_t lanes = args.rows * (args.heads / args.kv_heads);
  // Multiply-adds; half a million take about as long as waking a thread is worth.
  constexpr double kWorthAThread = 5e5;
  const double work = 2.0 * static_cast<double>(lanes * args.kv_heads * args.size) * static_cast<double>(slots);
  const std::int64_t threads =
      at::in_parallel_region() || work < 2 * kWorthAThread ? 1 : static_cast<std::int64_t>(at::get_num_threads());
  const Plan plan(args, lanes, longest, threads);
  const std::int64_t scratch_bytes = kernel.scratch_bytes(args, plan.lanes_per_tile);
  const std::int64_t state_bytes = kernel.state_bytes(args, plan.lanes_per_tile);

  const auto piece_of = [&](std::int64_t unit, std::int64_t split) {
    const std::int64_t tile = unit % plan.tiles, head = unit / plan.tiles, n = head / args.kv_heads;
    return Piece{n,
                 head % args.kv_heads,
                 tile * plan.lanes_per_tile,
                 std::min(lanes, (tile + 1) * plan.lanes_per_tile),
                 std::min(ends[n], split * plan.blocks_per_split * kKeyBlock),
                 std::min(ends[n], (split + 1) * plan.blocks_per_split * kKeyBlock)};
  };
  const std::int64_t units = args.sequences * args.kv_heads * plan.tiles, tasks = units * plan.splits;
  const auto grain = static_cast<std::int64_t>(kWorthAThread / (work / static_cast<double>(tasks)));
  // Each task leaves its state where finish finds those of a unit side by side; with one split it is finished at once.
  const std::int64_t workers = threads == 1 ? 1 : at::get_num_threads(), states = plan.splits == 1 ? workers : tasks;
  const at::Tensor memory = at::empty({workers * scratch_bytes + states * state_bytes + 64}, q.options().dtype(at::kByte));
  auto* scratch = reinterpret_cast<char*>(round_up(reinterpret_cast<std::int64_t>(memory.mutable_data_ptr()), 64));
  char* state = scratch + workers * scratch_bytes;

  const auto attend = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t worker = workers == 1 ? 0 : at::get_thread_num();
    for (std::int64_t task = begin; task < end; ++task) {
      const Piece piece = piece_of(task / plan.splits, task % plan.splits);
      char* own = state + (plan.splits == 1 ? worker : task) * state_bytes;
      kernel.attend(args, piece, scratch + worker * scratch_bytes, own);
      if (plan.splits == 1) kernel.finish(args, piece, own, state_bytes, 1);
    }
  };
  if (workers == 1) {
    attend(0, tasks);
  } else {
    at::parallel_for(0, tasks, std::max<std::int64_t>(1, grain), attend);
  }
  for (std::int64_t unit = 0; plan.splits > 1 && unit < units; ++unit) {
    kernel.finish(args, piece_of(unit, 0), state + unit * plan.splits * state_bytes, state_bytes, plan.splits);
  }
  return out;
}

at::Tensor rope_store(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cos, const at::Tensor& sin,
                      const std::optional<at::Tensor>& query_scale, const at::Tensor& slots, at::Tensor& k_cache,
                      at::Tensor& v_cache) {
  check_rope_store(q, k, v, cos, sin, query_scale, slots, k_cache, v_cache);
  const std::int64_t sequences = q.size(0), rows = q.size(1), heads = q.size(2), kv_heads = k.size(2), size = q.size(3);
  const at::Tensor row_slots = slots.contiguous();
  const auto* slot_of = row_slots.const_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < sequences * rows; ++i) {
    TORCH_CHECK_VALUE(slot_of[i] >= 0 && slot_of[i] < k_cache.size(1), "rope_store: slots must be in 0 ... ", k_cache.size(1) - 1,
                      ", the slots of k_cache, got ", slot_of[i], ".");
  }
  const at::Tensor queries = with_contiguous_heads(q), keys = with_contiguous_heads(k), values = with_contiguous_heads(v);
  const at::Tensor cosines = cos.to(q.scalar_type()).contiguous(), sines = sin.to(q.scalar_type()).contiguous();
  const at::Tensor scales = query_scale.has_value() ? query_scale->to(q.scalar_type()).contiguous() : at::Tensor();
  at::Tensor out = at::empty(q.sizes(), q.options().memory_format(at::MemoryFormat::Contiguous));
  const DType dtype = dtype_of(q);
  const auto width = static_cast<std::int64_t>(q.element_size());

  // Data of head h of sequence n.
  const auto head_of = [width](const at::Tensor& rows_of, std::int64_t n, std::int64_t h) {
    return static_cast<const char*>(rows_of.const_data_ptr()) + (n * rows_of.stride(0) + h * rows_of.stride(2)) * width;
  };
  const auto cache_of = [width](at::Tensor& cache, std::int64_t n, std::int64_t h) {
    return static_cast<char*>(cache.mutable_data_ptr()) + (n * cache.stride(0) + h * cache.stride(2)) * width;
  };
  const auto table_of = [width, rows](const at::Tensor& table, std::int64_t n, std::int64_t columns) -> const void* {
    return table.defined() ? static_cast<const char*>(table.const_data_ptr()) + n * rows * columns * width : nullptr;
  };

  // A task is a head of a sequence: rows that share the spare slot then overwrite one another in order, on one thread.
  const std::int64_t per_sequence = heads + 2 * kv_heads;
  constexpr std::int64_t kElementsPerTask = 1 << 15;
  const std::int64_t grain = std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, rows * size));
  at::parallel_for(0, sequences * per_sequence, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t n = task / per_sequence, h = task % per_sequence;
      const void *c = table_of(cosines, n, size / 2), *s = table_of(sines, n, size / 2);
      if (h < heads) {
        auto* to = static_cast<char*>(out.mutable_data_ptr()) + (n * rows * heads + h) * size * width;
        rotate_head(dtype, {head_of(queries, n, h), queries.stride(1)}, c, s, table_of(scales, n, 1), nullptr, rows, size,
                    {to, heads * size});
      } else if (h < heads + kv_heads) {
        rotate_head(dtype, {head_of(keys, n, h - heads), keys.stride(1)}, c, s, nullptr, slot_of + n * rows, rows, size,
                    {cache_of(k_cache, n, h - heads), k_cache.stride(1)});
      } else {
        store_head({head_of(values, n, h - heads - kv_heads), values.stride(1) * width}, slot_of + n * rows, rows, size * width,
                   {cache_of(v_cache, n, h - heads - kv_heads), v_cache.stride(1) * width});
      }
    }
  });
  return out;
}

}  // namespace packed_ss::cpu
