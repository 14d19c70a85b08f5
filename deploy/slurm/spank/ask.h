/* Asks a program for one line, for a short time.
 *
 * SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
 */
#ifndef TIDEGAUGE_ASK_H
#define TIDEGAUGE_ASK_H

#include <stddef.h>

/* Runs arguments[0] with the user's name and home, the API's token, and nothing else of this environment. Its first
 * line is in the buffer, without its end, if it exited with 0 within that time; else the buffer is empty. It, and what
 * it started in its process group, has ended or is killed when this returns. */
void tidegauge_ask(char *const arguments[], long timeout_ms, char *line, size_t size);

#endif
