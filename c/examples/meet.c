/*
 * meet: two ends of which neither listens (UDT's rendezvous), in two processes.
 *
 *   meet LOCAL PORT PEER PORT        receives from the peer until it ends
 *   meet LOCAL PORT PEER PORT KIB    sends so much
 *
 * Both call haul_stream_rendezvous with the same addresses, the other way round, whichever begins
 * first. The peer may be any UDT4 program: udt_send and udt_recv of tests/interop print the same
 * line.
 */
#include "example.h"

static void find(const char *host, const char *port, struct sockaddr_storage *address, socklen_t *len) {
  struct addrinfo hints, *found;
  memset(&hints, 0, sizeof hints);
  hints.ai_socktype = SOCK_DGRAM;
  int error = getaddrinfo(host, port, &hints, &found);
  if (error != 0) {
    fail("%s port %s: %s", host, port, gai_strerror(error));
  }
  memcpy(address, found->ai_addr, found->ai_addrlen);
  *len = found->ai_addrlen;
  freeaddrinfo(found);
}

/* FNV-1a of all bytes so far. */
static uint64_t add(uint64_t sum, const unsigned char *bytes, int len) {
  for (int i = 0; i < len; i++) {
    sum = (sum ^ bytes[i]) * 0x100000001b3u;
  }
  return sum;
}

int main(int count, char **arguments) {
  static unsigned char bytes[100003];
  struct sockaddr_storage local, peer;
  socklen_t local_len, peer_len;
  haul_context *context;
  haul_stream *stream;
  if (count != 5 && count != 6) {
    fail("usage: meet LOCAL PORT PEER PORT [KIB]");
  }
  find(arguments[1], arguments[2], &local, &local_len);
  find(arguments[3], arguments[4], &peer, &peer_len);
  must(NULL, haul_open("soft-udt", NULL, &context));
  haul_stream_options options = HAUL_STREAM_OPTIONS_INIT;
  /* How long this end waits for the other one to begin. */
  options.connect_timeout_ns = PATIENCE_NS;
  must(context, haul_stream_rendezvous(context, (struct sockaddr *)&local, local_len, (struct sockaddr *)&peer, peer_len,
                                       &options, &stream));
  int ready = must(context, haul_stream_wait(stream, HAUL_STREAM_OPEN | HAUL_STREAM_OVER, PATIENCE_NS));
  haul_stream_info info = HAUL_STREAM_INFO_INIT;
  must(context, haul_stream_query(stream, &info));
  if ((ready & HAUL_STREAM_OPEN) == 0) {
    fail("the peer did not come: %s", info.reason);
  }

  uint64_t all = 0, sum = 0xcbf29ce484222325u, wanted = count == 6 ? number(arguments[5]) << 10 : 0;
  while (all < wanted) {
    int len = wanted - all < sizeof bytes ? (int)(wanted - all) : (int)sizeof bytes;
    for (int i = 0; i < len; i++) {
      bytes[i] = (unsigned char)((all + (uint64_t)i) * 0x9e3779b97f4a7c15u >> 56);
    }
    int taken = must(context, haul_stream_send(stream, bytes, (size_t)len));
    sum = add(sum, bytes, taken);
    all += (uint64_t)taken;
    if (taken == 0 && must(context, haul_stream_wait(stream, HAUL_STREAM_WRITABLE | HAUL_STREAM_OVER, PATIENCE_NS)) == 0) {
      fail("the peer takes nothing any more");
    }
  }
  if (wanted > 0) {
    must(context, haul_stream_shutdown(stream));
    if ((must(context, haul_stream_wait(stream, HAUL_STREAM_SENT | HAUL_STREAM_OVER, PATIENCE_NS)) & HAUL_STREAM_SENT) == 0) {
      fail("what was sent did not arrive");
    }
  }
  while (wanted == 0) {
    int got = haul_stream_recv(stream, bytes, sizeof bytes);
    /* A plain UDT peer has no end of its own for each direction. */
    if (got == HAUL_ERR_ENDED || (got == HAUL_ERR_DISCONNECTED && (info.flags & HAUL_STREAM_PLAIN) != 0)) {
      break;
    }
    sum = add(sum, bytes, must(context, got));
    all += (uint64_t)got;
    if (got == 0 && must(context, haul_stream_wait(stream, HAUL_STREAM_READABLE | HAUL_STREAM_OVER, PATIENCE_NS)) == 0) {
      fail("the peer sends nothing any more");
    }
  }
  printf("%s %llu messages 0 fnv1a %016llx\n", wanted > 0 ? "sent" : "received", (unsigned long long)all,
         (unsigned long long)sum);
  haul_stream_destroy(stream);
  haul_close(context);
  return 0;
}
