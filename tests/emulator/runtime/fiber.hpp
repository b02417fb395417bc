// One fiber per lane: a stack of its own and a switch of a few instructions.
#pragma once
#include <stdint.h>
#include <sys/mman.h>

// Saves the callee-saved registers on this stack, leaves its pointer in *from, and takes up `to`.
extern "C" void emu_switch(void** from, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch, .-emu_switch
)");
constexpr int kSavedWords = 6;
constexpr int kReturnWord = 6;  // the return address lies above the saved registers
#elif defined(__aarch64__)
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch, %function
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emu_switch, .-emu_switch
)");
constexpr int kSavedWords = 20;
constexpr int kReturnWord = 11;  // x30 among the saved registers
#else
#error "the emulator switches fibers on x86-64 and AArch64"
#endif

constexpr size_t kStackBytes = 128 << 10;  // the lowest page is a guard
constexpr int kMaxLanes = 1024;

struct StackPool {
  char* base = nullptr;

  char* stack(int lane) {
    if (!base) {
      void* p = mmap(nullptr, kStackBytes * kMaxLanes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) return nullptr;
      base = static_cast<char*>(p);
      for (int i = 0; i < kMaxLanes; i++) mprotect(base + i * kStackBytes, 4096, PROT_NONE);
    }
    return base + lane * kStackBytes;
  }
  bool owns(uintptr_t address) const {
    return address - reinterpret_cast<uintptr_t>(base) < kStackBytes * kMaxLanes;
  }
};

// The stack pointer of a fiber that will begin in `start`, which must never return.
inline void* fresh_fiber(char* stack, int lane, void (*start)()) {
  // Lanes start at different cache sets: their hot frames would otherwise evict one another.
  char* top = stack + kStackBytes - 64 - (lane % 32) * 128;
  uintptr_t aligned = reinterpret_cast<uintptr_t>(top) & ~uintptr_t(63);
#if defined(__x86_64__)
  void** sp = reinterpret_cast<void**>(aligned - 8) - kSavedWords - 1;  // as if just called
#else
  void** sp = reinterpret_cast<void**>(aligned) - kSavedWords;
#endif
  for (int i = 0; i < kSavedWords; i++) sp[i] = nullptr;
  sp[kReturnWord] = reinterpret_cast<void*>(start);
  return sp;
}
