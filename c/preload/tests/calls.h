/* calls.h - what the cases of the conformance list share. Each case prints one line, the same
 * whoever carries the bytes. */
#ifndef CALLS_H
#define CALLS_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Longer than anything takes on a busy machine. */
#define PATIENCE_MS 60000
/* Long enough to see that nothing comes. */
#define MOMENT_MS 30

/* "name: text", and the number of the case before it. */
void say(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "name: result" or "name: error". */
void say_result(const char *name, long result);
/* The name of an errno, which is the same everywhere. */
const char *error_name(int error);
/* What the list cannot go on without. */
void must(bool condition, const char *what);

struct pair {
  int a, b;
};
/* Both ends of a TCP connection on loopback, and two UDP sockets that are connected to each
 * other. */
struct pair tcp_pair(int family);
struct pair udp_pair(int family);
void close_pair(struct pair pair);
/* A bound socket of a type, listening if it is TCP. */
int bound_socket(int family, int type);
struct sockaddr_storage name_of(int fd, socklen_t *length);
void set_nonblocking(int fd);
void set_timeout(int fd, int option, int ms);
/* Waits until the kernel or the shim says that there is something; false when nothing comes. */
bool wait_readable(int fd);
/* What FIONREAD says, -1 if it fails. */
int readable(int fd);
/* Bytes that differ by place and by seed. */
void fill(char *buffer, size_t length, unsigned seed);
bool is_filled(const char *buffer, size_t length, unsigned seed);
/* Sends or receives everything, in as many calls as it takes. */
bool send_all(int fd, const char *buffer, size_t length);
size_t recv_all(int fd, char *buffer, size_t length);
/* Has a signal's handler called in this thread after a while, and sees to it that a call is
 * interrupted. */
void interrupt_after(int signal_number, bool restart, int ms);
int interrupts(void);
void stop_interrupting(void);

void cases_matrix(void);
void cases_stream(void);
void cases_datagram(void);
void cases_poll(void);
void cases_epoll(void);
void cases_waiting(void);
void cases_process(void);
void cases_errors(void);
void cases_inherited(void);

#endif
