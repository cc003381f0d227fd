/* Preloaded into a broker: delays writes and syncs of regular files by the milliseconds that a file says.
 *
 * The file is named by SLOW_DISK_FILE and read at each call; while it is absent or empty nothing is delayed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static long delay_ms(void) {
    const char *path = getenv("SLOW_DISK_FILE");
    char text[16] = {0};
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    ssize_t count = read(file, text, sizeof text - 1);
    close(file);
    return count > 0 ? atol(text) : 0;
}

static void wait_ms(long ms) {
    struct timespec pause = {ms / 1000, (ms % 1000) * 1000000};
    if (ms > 0) nanosleep(&pause, NULL);
}

static int is_data(int file) {
    struct stat found;
    return file > 2 && fstat(file, &found) == 0 && S_ISREG(found.st_mode);
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    if (is_data(file)) wait_ms(10 * delay_ms());
    return real(file);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    if (is_data(file)) wait_ms(10 * delay_ms());
    return real(file);
}

ssize_t write(int file, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    if (is_data(file)) wait_ms(delay_ms());
    return real(file, data, size);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    if (is_data(file)) wait_ms(delay_ms());
    return real(file, data, size, offset);
}
