#define _GNU_SOURCE
#include "budget.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "knobs.h"

/* Change it with the layout of the structures below: processes built from other sources then get a file of their own.
 */
#define LAYOUT_MAGIC 0x54474647505530ull + 2

#define DEFAULT_TOTAL_BYTES ((uint64_t)80 << 30)
/* Measured residuals of a CUDA context are 300 to 600 MiB, see docs of the rig. */
#define DEFAULT_CONTEXT_BYTES ((uint64_t)500 << 20)

struct process {
    pid_t pid;            /* 0: the slot is free */
    uint64_t start_ticks; /* field 22 of /proc/PID/stat; tells a recycled pid from the process that we knew */
    uint64_t memory_bytes[MAX_DEVICES];
    uint64_t context_bytes[MAX_DEVICES];
    uint8_t has_context[MAX_DEVICES];
};

struct state {
    uint64_t magic;
    uint32_t device_count;
    uint64_t total_bytes;
    uint64_t context_bytes;
    /* Process-shared and robust: a rank killed while it holds the lock must not hang all others. flock would be robust
     * too, but does not exclude the threads of one process from each other. */
    pthread_mutex_t lock;
    struct process processes[MAX_PROCESSES];
};

static struct state *state;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

/* Start time of a living process, 0 for one that is gone. A zombie counts as gone: its memory has been freed. */
static uint64_t start_ticks_of(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    /* The command name may hold spaces and parentheses: count fields after the last one. */
    char *cursor = strrchr(text, ')');
    if (cursor == NULL || strlen(cursor) < 3 || cursor[2] == 'Z' || cursor[2] == 'X')
        return 0;
    cursor += 2;
    for (int field = 3; field < 22 && cursor != NULL; field++)
        cursor = strchr(cursor + 1, ' ');
    return cursor == NULL ? 0 : strtoull(cursor + 1, NULL, 10);
}

static void forget_the_dead(void)
{
    for (int i = 0; i < MAX_PROCESSES; i++) {
        struct process *process = &state->processes[i];
        if (process->pid != 0 && start_ticks_of(process->pid) != process->start_ticks)
            memset(process, 0, sizeof *process);
    }
}

static bool anybody_lives(void)
{
    forget_the_dead();
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (state->processes[i].pid != 0)
            return true;
    return false;
}

static void begin_anew(void)
{
    memset(state, 0, sizeof *state);
    state->device_count = (uint32_t)knob_number("FAKEGPU_DEVICES", 2, 0, MAX_DEVICES);
    state->total_bytes = knob_number("FAKEGPU_TOTAL_BYTES", DEFAULT_TOTAL_BYTES, DEVICE_PAGE_BYTES, (uint64_t)1 << 46);
    state->context_bytes = knob_number("FAKEGPU_CONTEXT_BYTES", DEFAULT_CONTEXT_BYTES, 0, (uint64_t)1 << 46);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    state->magic = LAYOUT_MAGIC;
}

/* Somebody uses these devices already: theirs count. Saying otherwise in one's own environment is worth a line. */
static void accept_what_is_there(const char *path)
{
    uint64_t devices = knob_number("FAKEGPU_DEVICES", state->device_count, 0, MAX_DEVICES);
    uint64_t total = knob_number("FAKEGPU_TOTAL_BYTES", state->total_bytes, DEVICE_PAGE_BYTES, (uint64_t)1 << 46);
    uint64_t context = knob_number("FAKEGPU_CONTEXT_BYTES", state->context_bytes, 0, (uint64_t)1 << 46);
    if (devices != state->device_count || total != state->total_bytes || context != state->context_bytes)
        complain("%s is in use with %u devices of %llu bytes (context %llu); this process's other wishes are ignored",
                 path, state->device_count, (unsigned long long)state->total_bytes,
                 (unsigned long long)state->context_bytes);
}

static void lock_state(void)
{
    int outcome = pthread_mutex_lock(&state->lock);
    if (outcome == EOWNERDEAD) {
        /* Its owner died between two stores at worst; its own slot is forgotten with it, so nothing is left half done.
         */
        pthread_mutex_consistent(&state->lock);
        forget_the_dead();
    } else if (outcome != 0) {
        give_up("the lock of the shared state failed: %s", strerror(outcome));
    }
}

static void unlock_state(void)
{
    pthread_mutex_unlock(&state->lock);
}

/* The caller's slot; with the lock held. A forked child gets a slot of its own at its first call. */
static struct process *own_process(void)
{
    pid_t self = getpid();
    struct process *unused = NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < MAX_PROCESSES; i++) {
            struct process *process = &state->processes[i];
            if (process->pid == self)
                return process;
            if (process->pid == 0 && unused == NULL)
                unused = process;
        }
        if (unused != NULL)
            break;
        forget_the_dead();
    }
    if (unused == NULL)
        give_up("more than %d processes use the fake GPUs at once", MAX_PROCESSES);
    memset(unused, 0, sizeof *unused);
    unused->start_ticks = start_ticks_of(self);
    unused->pid = self;
    return unused;
}

static int open_state_file(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        give_up("cannot open %s: %s (set FAKEGPU_STATE to a file of your own)", path, strerror(errno));
    struct stat status;
    bool usable = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    /* root may have made one for all users of a node: they share its GPUs, as they do real ones */
    bool is_shared = usable && status.st_uid == 0 && (status.st_mode & S_IWOTH);
    if (!usable || !(status.st_uid == geteuid() || geteuid() == 0 || is_shared))
        give_up("%s belongs to somebody else (set FAKEGPU_STATE to a file of your own)", path);
    return file;
}

/* Runs once a process. The whole of it happens under flock, so that two starting processes cannot both begin anew. */
static void open_state(void)
{
    char default_path[64];
    snprintf(default_path, sizeof default_path, "/dev/shm/tidegauge-fakegpu-%u", (unsigned)geteuid());
    const char *path = knob_is_set("FAKEGPU_STATE") ? getenv("FAKEGPU_STATE") : default_path;
    for (;;) {
        int file = open_state_file(path);
        struct stat held, present;
        flock(file, LOCK_EX);
        fstat(file, &held);
        if (stat(path, &present) != 0 || present.st_ino != held.st_ino) {
            close(file); /* replaced while we waited for it */
            continue;
        }
        bool is_new = held.st_size == 0;
        if (!is_new && held.st_size != (off_t)sizeof(struct state)) {
            unlink(path); /* of another layout: its users keep theirs, we make a new one */
            close(file);
            continue;
        }
        if (ftruncate(file, (off_t)sizeof(struct state)) != 0)
            give_up("cannot size %s: %s", path, strerror(errno));
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (state == MAP_FAILED)
            give_up("cannot map %s: %s", path, strerror(errno));
        if (!is_new && state->magic != 0 && state->magic != LAYOUT_MAGIC) {
            munmap(state, sizeof *state);
            unlink(path);
            close(file);
            continue;
        }
        if (state->magic != LAYOUT_MAGIC || !anybody_lives())
            begin_anew();
        else
            accept_what_is_there(path);
        lock_state();
        own_process();
        unlock_state();
        flock(file,
              LOCK_UN); /* said aloud: the mapping keeps the open file, and with it the lock, alive after close() */
        close(file);
        return;
    }
}

static void ensure_open(void)
{
    pthread_once(&opened, open_state);
}

static uint64_t used_bytes(int device)
{
    uint64_t used = 0;
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (state->processes[i].pid != 0)
            used += state->processes[i].memory_bytes[device] + state->processes[i].context_bytes[device];
    return used;
}

/* With the lock held. The dead are counted only when it matters: reading /proc for everybody at each cudaMalloc would
 * not be fake memory but real time. */
static bool fits(int device, uint64_t bytes)
{
    if (used_bytes(device) + bytes <= state->total_bytes)
        return true;
    forget_the_dead();
    return used_bytes(device) + bytes <= state->total_bytes;
}

int budget_device_count(void)
{
    ensure_open();
    return (int)state->device_count;
}

uint64_t budget_total_bytes(void)
{
    ensure_open();
    return state->total_bytes;
}

bool budget_take(int device, uint64_t bytes)
{
    ensure_open();
    lock_state();
    bool taken = bytes <= state->total_bytes && fits(device, bytes);
    if (taken)
        own_process()->memory_bytes[device] += bytes;
    unlock_state();
    return taken;
}

void budget_give_back(int device, uint64_t bytes)
{
    ensure_open();
    lock_state();
    struct process *self = own_process();
    self->memory_bytes[device] -= bytes < self->memory_bytes[device] ? bytes : self->memory_bytes[device];
    unlock_state();
}

bool budget_enter(int device)
{
    ensure_open();
    lock_state();
    struct process *self = own_process();
    bool inside = self->has_context[device] || fits(device, state->context_bytes);
    if (inside && !self->has_context[device]) {
        self->context_bytes[device] = state->context_bytes;
        self->has_context[device] = 1;
    }
    unlock_state();
    return inside;
}

bool budget_has_context(int device)
{
    ensure_open();
    lock_state();
    bool has = own_process()->has_context[device];
    unlock_state();
    return has;
}

uint64_t budget_used_bytes(int device)
{
    ensure_open();
    lock_state();
    forget_the_dead();
    uint64_t used = used_bytes(device);
    unlock_state();
    return used;
}

uint64_t budget_own_bytes(int device)
{
    ensure_open();
    lock_state();
    uint64_t bytes = own_process()->memory_bytes[device];
    unlock_state();
    return bytes;
}

size_t budget_processes(int device, struct process_bytes *out, size_t room)
{
    ensure_open();
    lock_state();
    forget_the_dead();
    size_t count = 0;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const struct process *process = &state->processes[i];
        if (process->pid == 0 || (!process->has_context[device] && process->memory_bytes[device] == 0))
            continue;
        if (count < room)
            out[count] =
                (struct process_bytes){process->pid, process->memory_bytes[device] + process->context_bytes[device]};
        count++;
    }
    unlock_state();
    return count;
}
