/* Descriptors above those of the standard streams.
 *
 * A program may have been started with one of them closed. What is opened next gets its number, and then what a library
 * prints, or a child reads as its standard input, is this file. So descriptors that stay open are moved. */
#ifndef SHMRING_DESCRIPTORS_H
#define SHMRING_DESCRIPTORS_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* The open file of `descriptor` under a number above 2, closed on exec; -1, with errno, if it is -1 or none is left. */
static inline int above_standard(int descriptor) {
    if (descriptor < 0 || descriptor > STDERR_FILENO) return descriptor;
    int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(descriptor);
    errno = error;
    return moved;
}

#endif
