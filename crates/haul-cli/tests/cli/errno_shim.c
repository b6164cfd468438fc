/*
 * Has the datagram calls of a program fail: preloaded into it by the tests.
 *
 * FAIL_ERRNO   which error, as a number
 * FAIL_CALLS   "send", "receive" or "both"
 * FAIL_AFTER   milliseconds from the first datagram that was received to the first failure
 * FAIL_FOR     milliseconds in which calls fail
 * FAIL_COUNT   the most failures
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static atomic_llong began;
static atomic_llong failures;

static long long now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static long long setting(const char *name, long long otherwise)
{
	const char *text = getenv(name);
	return text ? atoll(text) : otherwise;
}

static int is_udp(int fd)
{
	int type = 0, domain = 0;
	socklen_t len = sizeof type;
	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) || type != SOCK_DGRAM)
		return 0;
	len = sizeof domain;
	return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) &&
	       (domain == AF_INET || domain == AF_INET6);
}

static void note_arrival(int fd, long long count)
{
	long long none = 0;
	if (count > 0 && is_udp(fd))
		atomic_compare_exchange_strong(&began, &none, now_ms());
}

static int fails(int fd, const char *call)
{
	const char *calls = getenv("FAIL_CALLS");
	int saved = errno;
	if (!calls || (strcmp(calls, "both") && strcmp(calls, call)) || !is_udp(fd)) {
		errno = saved;
		return 0;
	}
	long long since = atomic_load(&began);
	long long at = now_ms() - since - setting("FAIL_AFTER", 0);
	if (!since || at < 0 || at > setting("FAIL_FOR", 1LL << 40)) {
		errno = saved;
		return 0;
	}
	if (atomic_fetch_add(&failures, 1) >= setting("FAIL_COUNT", 1LL << 40)) {
		errno = saved;
		return 0;
	}
	errno = (int)setting("FAIL_ERRNO", EPERM);
	return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	return fails(fd, "send") ? -1 : REAL(sendmsg)(fd, message, flags);
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags)
{
	return fails(fd, "send") ? -1 : REAL(sendmmsg)(fd, messages, count, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	if (fails(fd, "receive"))
		return -1;
	ssize_t len = REAL(recvmsg)(fd, message, flags);
	note_arrival(fd, len);
	return len;
}

int recvmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags,
	     struct timespec *timeout)
{
	if (fails(fd, "receive"))
		return -1;
	int received = REAL(recvmmsg)(fd, messages, count, flags, timeout);
	note_arrival(fd, received);
	return received;
}
