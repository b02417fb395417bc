// Machine faults and endless loops end the launch, not the process.
#pragma once
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "machine.hpp"

static void on_signal(int number, siginfo_t* info, void* context) {
  Machine& m = machine;
  if (!m.launch) return;
  auto* registers = &static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  uint64_t pc = registers->gregs[REG_RIP];
#else
  uint64_t pc = registers->pc;
#endif
  int kind = number == SIGRTMIN ? WATCHDOG : CRASH;
  m.report(kind, pc + 1, 0, -1, reinterpret_cast<int64_t>(info->si_addr), number, false, kNoLane);
  m.abort = true;
  m.launch->aborted = 1;
  siglongjmp(m.escape, 1);
}

struct Guard {  // signal handlers, their stack and the timer, for the time of one launch
  static constexpr int kSignals[4] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
  struct sigaction old[4], old_timer;
  stack_t old_stack;
  timer_t timer;
  static inline char stack[64 << 10];

  explicit Guard(double timeout) {
    stack_t fresh{};
    fresh.ss_sp = stack;
    fresh.ss_size = sizeof stack;
    sigaltstack(&fresh, &old_stack);
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 4; i++) sigaction(kSignals[i], &action, &old[i]);
    sigaction(SIGRTMIN, &action, &old_timer);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGRTMIN;
    event._sigev_un._tid = static_cast<int>(syscall(SYS_gettid));
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    itimerspec when{};
    when.it_value.tv_sec = static_cast<time_t>(timeout);
    when.it_value.tv_nsec = static_cast<long>((timeout - static_cast<time_t>(timeout)) * 1e9);
    timer_settime(timer, 0, &when, nullptr);
  }
  ~Guard() {
    timer_delete(timer);
    for (int i = 0; i < 4; i++) sigaction(kSignals[i], &old[i], nullptr);
    sigaction(SIGRTMIN, &old_timer, nullptr);
    sigaltstack(&old_stack, nullptr);
  }
};
