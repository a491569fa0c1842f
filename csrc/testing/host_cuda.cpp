#include "host_cuda.h"

#include <mutex>
#include <numeric>

#include "block.h"

namespace packed_ss::host_cuda {

uint3 thread_index, block_index;
dim3 block_size, grid_size;

namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxGridYZ = 65535;
constexpr std::size_t kMaxDynamicShared = 48 << 10;  // without an attribute of the kernel

std::mutex one_launch;  // the built-in variables are global
Order order;
std::uint64_t launch_count = 0;
Block* running = nullptr;
cudaError_t last_error = cudaSuccess;
std::vector<std::unique_ptr<Stack>> spare_stacks;

bool valid(dim3 grid, dim3 block, std::size_t shared_bytes) {
  return grid.x > 0 && grid.x <= 0x7fffffffu && grid.y > 0 && grid.y <= kMaxGridYZ && grid.z > 0 && grid.z <= kMaxGridYZ &&
         block.x > 0 && block.y > 0 && block.z > 0 && block.z <= 64 &&
         std::uint64_t{block.x} * block.y * block.z <= kMaxThreads && shared_bytes <= kMaxDynamicShared;
}

}  // namespace

void set_order(std::uint64_t seed) { order.seed(seed); }

std::uint64_t launches() { return launch_count; }

void run_grid(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, Body body, const void* context) {
  if (running != nullptr) running->fail("a kernel launches a kernel");
  const std::lock_guard<std::mutex> lock(one_launch);
  if (!valid(grid, block, shared_bytes)) {
    last_error = cudaErrorInvalidConfiguration;
    return;
  }
  ++launch_count;
  grid_size = grid;
  block_size = block;
  std::vector<std::uint64_t> blocks(std::size_t{grid.x} * grid.y * grid.z);
  std::iota(blocks.begin(), blocks.end(), std::uint64_t{0});
  if (order.shuffles()) order.shuffle(blocks);

  Launch launch{name, body, context, shared_bytes, order, 0, {}, {}, std::move(spare_stacks)};
  std::vector<std::unique_ptr<Block>> states;
  const auto end = [&] {
    running = nullptr;
    acquire(&launch.finished);
    states.clear();
    spare_stacks = std::move(launch.stacks);
    if (kChecksRaces) spare_stacks.clear();
  };
  try {
    for (const std::uint64_t i : blocks) {
      if (kChecksRaces || states.empty()) states.push_back(std::make_unique<Block>(launch, block));
      block_index = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                     static_cast<unsigned>(i / grid.x / grid.y)};
      running = states.back().get();
      running->run();
    }
  } catch (...) {
    end();
    throw;
  }
  end();
}

std::uint64_t collective(Op op, unsigned mask, std::uint64_t value, int operand, int width, Where where) {
  return running->collective({op, mask, value, operand, width, where});
}

void* static_shared(const void* key, const char* name, std::size_t bytes, std::size_t alignment) {
  return running->static_shared(key, name, bytes, alignment);
}

void* dynamic_shared() { return running->dynamic_shared(); }
void before_atomic(const void* address, Where where) { running->before_atomic(address, where); }
void fence() { running->fence(); }

void trap(Where where) {
  running->fail("thread " + std::to_string(running->running()) + " calls __trap, line " + std::to_string(where.line));
}

}  // namespace packed_ss::host_cuda

cudaError_t cudaPeekAtLastError() { return packed_ss::host_cuda::last_error; }

cudaError_t cudaGetLastError() { return std::exchange(packed_ss::host_cuda::last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
  }
  return "unknown error";
}
