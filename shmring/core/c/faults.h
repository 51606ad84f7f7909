/* Fault injection: named points at which a test can make this process die, stop, or pause.
 *
 * In ordinary builds a point compiles to nothing. In a build with SHMRING_FAULTS=1 a thread that passes a point reads
 * the environment variable SHMRING_FAULT:
 *
 *     SHMRING_FAULT=publish@3:9       at the third pass of "publish" from now on, raise signal 9
 *     SHMRING_FAULT=publish@1:exit    _exit(3)
 *     SHMRING_FAULT=elsewhere@1:50ms  sleep for 50 ms, so that other ranks get ahead
 *
 * Passes are counted in each process from the last change of the variable. tests/faults/ lists the points.
 */
#ifndef SHMRING_FAULTS_H
#define SHMRING_FAULTS_H

#ifdef SHMRING_FAULTS

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void fault_point(const char *name) {
    /* One copy for each extension module. A point stands in one module only, so its passes are counted in one place. */
    static char armed[64];
    static long passes;
    const char *wanted = getenv("SHMRING_FAULT");
    if (wanted == NULL) {
        armed[0] = '\0';
        return;
    }
    if (strncmp(armed, wanted, sizeof armed - 1) != 0) {
        strncpy(armed, wanted, sizeof armed - 1);
        passes = 0;
    }
    size_t length = strlen(name);
    if (strncmp(armed, name, length) != 0 || armed[length] != '@') return;
    char *action;
    if (++passes != strtol(armed + length + 1, &action, 10)) return;
    action++;
    if (strcmp(action, "exit") == 0) _exit(3);
    long number = strtol(action, &action, 10);
    if (strcmp(action, "ms") == 0) {
        struct timespec pause = {number / 1000, number % 1000 * 1000000};
        while (nanosleep(&pause, &pause) != 0) {}
        return;
    }
    /* To this very thread: the next instruction is not reached before a signal that ends or stops. */
    raise((int)number);
}

#else
static inline void fault_point(const char *name) { (void)name; }
#endif

#endif
