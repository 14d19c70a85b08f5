/* What the environment says about the fake GPUs. Every name starts with FAKEGPU_; README.md lists them all. */
#ifndef FAKEGPU_KNOBS_H
#define FAKEGPU_KNOBS_H

#include <stdbool.h>
#include <stdint.h>

/* A non-negative decimal number, or `otherwise` when the variable is unset or empty. A malformed or out-of-range value
 * ends the process with a message: a test on a rig other than the one it asked for would prove nothing. */
uint64_t knob_number(const char *name, uint64_t otherwise, uint64_t lowest, uint64_t highest);

bool knob_is_set(const char *name);

/* True when the variable equals `word`. Read anew at each call, so that os.environ[...] = ... works in a running
 * process. */
bool knob_equals(const char *name, const char *word);

/* One line on stderr, prefixed "fakegpu: ". */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
