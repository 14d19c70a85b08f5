/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later */
#define _GNU_SOURCE /* pipe2 */
#include "ask.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* Not PYTHONPATH and the like: they are for the user's programs. */
static const char *const passed_on[] = {"HOME", "USER", "LOGNAME", "XDG_CONFIG_HOME", "TIDEGAUGE_API_TOKEN",
                                        "TIDEGAUGE_API_TOKEN_FILE"};
enum { PASSED_ON = sizeof passed_on / sizeof *passed_on };

static long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static char *entry_of(const char *name)
{
    size_t length = strlen(name);

    for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
            return *entry;
    return NULL;
}

/* The program's process, in a group of its own and with its output in the pipe; -1 where it cannot be started. */
static pid_t start(char *const arguments[], int output)
{
    char *own[PASSED_ON + 2] = {"PATH=/usr/local/bin:/usr/bin:/bin"}, *entry;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none;
    pid_t pid = -1;
    int count = 1;

    for (int i = 0; i < PASSED_ON; i++)
        if ((entry = entry_of(passed_on[i])) != NULL)
            own[count++] = entry;
    if (posix_spawn_file_actions_init(&files) != 0)
        return -1;
    if (posix_spawnattr_init(&attributes) == 0) {
        sigemptyset(&none);
        posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&files, output, 1);
        posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
        posix_spawnattr_setsigmask(&attributes, &none); /* srun blocks signals */
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
        if (posix_spawn(&pid, arguments[0], &files, &attributes, arguments, own) != 0)
            pid = -1;
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&files);
    return pid;
}

/* Reads until the other end is closed; 0 when the time is over before. */
static int read_all(int input, long deadline_ms, char *line, size_t size)
{
    struct pollfd ready = {.fd = input, .events = POLLIN};
    size_t length = 0;
    char rest[256];

    for (;;) {
        long left_ms = deadline_ms - now_ms();
        int found = left_ms <= 0 ? 0 : poll(&ready, 1, (int)left_ms);
        ssize_t count;

        if (found < 0 && errno == EINTR)
            continue;
        if (found <= 0)
            return 0;
        count = length + 1 < size ? read(input, line + length, size - 1 - length) : read(input, rest, sizeof rest);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count == 0;
        if (length + 1 < size)
            length += (size_t)count;
        line[length] = '\0';
    }
}

/* Whether the process ended with 0 by then; it has ended when this returns. */
static int ended_well(pid_t pid, long deadline_ms)
{
    const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    int status = -1;
    pid_t ended;

    while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && now_ms() < deadline_ms)
        nanosleep(&pause, NULL);
    if (ended != 0)
        return ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return 0;
}

void tidegauge_ask(char *const arguments[], long timeout_ms, char *line, size_t size)
{
    long deadline_ms = now_ms() + timeout_ms;
    int ends[2], is_whole;
    pid_t pid;

    *line = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    pid = start(arguments, ends[1]);
    close(ends[1]);
    is_whole = pid > 0 && read_all(ends[0], deadline_ms, line, size);
    close(ends[0]);
    if (pid > 0 && !is_whole)
        kill(-pid, SIGKILL);
    if (pid <= 0 || !ended_well(pid, deadline_ms) || !is_whole)
        *line = '\0';
    line[strcspn(line, "\n")] = '\0';
}
