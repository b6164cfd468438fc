/* The same work over a libfabric provider: fi_write bandwidth, and a ping-pong of fi_send.
 *
 *   fabric_bench serve PROVIDER ADDRESS PORT
 *   fabric_bench PROVIDER ADDRESS PORT write|send SIZE SECONDS DEPTH
 *
 * PROVIDER "tcp" is used by connected endpoints (FI_EP_MSG), as it is fastest; any other
 * ("udp;ofi_rxd", "tcp;ofi_rxm") by reliable datagram endpoints. A plain TCP connection at PORT
 * carries names and keys. As in haul bench rdma, writes are timed until all of them are placed: the
 * last one is followed by a message that the server confirms. Both ends poll. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include "common.h"

enum { SIZE_MAX_B = 8 << 20, NAME_MAX_B = 256, SAMPLES_MAX = 1 << 22, SLOTS = 16 };

/* What the ends tell each other. */
struct hello {
  uint64_t addr, key, name_len;
  char name[NAME_MAX_B];
};

struct work {
  uint32_t is_write, size;
};

struct end {
  struct fi_info *info;
  struct fid_fabric *fabric;
  struct fid_domain *domain;
  struct fid_eq *eq;
  struct fid_cq *tx, *rx;
  struct fid_av *av;
  struct fid_ep *ep;
  struct fid_mr *mr;
  fi_addr_t peer;
  char *memory;
  void *desc;
  struct hello theirs;
};

#define FI(call)                                               \
  do {                                                         \
    long fi_result = (long)(call);                             \
    if (fi_result < 0) die(#call, fi_strerror((int)-fi_result)); \
  } while (0)

static struct fi_info *info_of(const char *provider, const char *host, uint64_t flags) {
  struct fi_info *hints = fi_allocinfo(), *info = NULL;
  hints->ep_attr->type = strcmp(provider, "tcp") ? FI_EP_RDM : FI_EP_MSG;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->tx_attr->msg_order = FI_ORDER_SAW | FI_ORDER_SAS;
  hints->rx_attr->msg_order = FI_ORDER_SAW | FI_ORDER_SAS;
  hints->fabric_attr->prov_name = strdup(provider);
  FI(fi_getinfo(FI_VERSION(1, 15), host, NULL, flags, hints, &info));
  fi_freeinfo(hints);
  return info;
}

static void open_domain(struct end *end) {
  FI(fi_fabric(end->info->fabric_attr, &end->fabric, NULL));
  struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
  FI(fi_eq_open(end->fabric, &attr, &end->eq, NULL));
}

static void open_endpoint(struct end *end, struct fi_info *info) {
  struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 4096};
  FI(fi_domain(end->fabric, info, &end->domain, NULL));
  FI(fi_cq_open(end->domain, &attr, &end->tx, NULL));
  FI(fi_cq_open(end->domain, &attr, &end->rx, NULL));
  FI(fi_endpoint(end->domain, info, &end->ep, NULL));
  FI(fi_ep_bind(end->ep, &end->tx->fid, FI_TRANSMIT));
  FI(fi_ep_bind(end->ep, &end->rx->fid, FI_RECV));
  if (info->ep_attr->type == FI_EP_MSG) {
    FI(fi_ep_bind(end->ep, &end->eq->fid, 0));
  } else {
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    FI(fi_av_open(end->domain, &av, &end->av, NULL));
    FI(fi_ep_bind(end->ep, &end->av->fid, 0));
  }
  FI(fi_enable(end->ep));
  end->memory = aligned_alloc(4096, SIZE_MAX_B);
  memset(end->memory, 1, SIZE_MAX_B);
  FI(fi_mr_reg(end->domain, end->memory, SIZE_MAX_B, FI_SEND | FI_RECV | FI_WRITE | FI_REMOTE_WRITE, 0, 1, 0,
               &end->mr, NULL));
  end->desc = fi_mr_desc(end->mr);
}

static void await_connection(struct end *end) {
  struct fi_eq_cm_entry entry;
  uint32_t event;
  FI(fi_eq_sread(end->eq, &event, &entry, sizeof entry, 10000, 0));
  if (event != FI_CONNECTED) die("fi_connect", "not connected");
}

/* Names, addresses and keys over the plain connection; connected endpoints connect as well. */
static void meet(struct end *end, int fd, int serving, const char *provider, const char *host) {
  struct hello ours = {.name_len = NAME_MAX_B};
  if (end->info->ep_attr->type == FI_EP_MSG) {
    if (serving) {
      struct fid_pep *pep;
      struct fi_eq_cm_entry entry;
      uint32_t event;
      FI(fi_passive_ep(end->fabric, end->info, &pep, NULL));
      FI(fi_pep_bind(pep, &end->eq->fid, 0));
      FI(fi_listen(pep));
      FI(fi_getname(&pep->fid, ours.name, &ours.name_len));
      tcp_send_all(fd, &ours, sizeof ours);
      FI(fi_eq_sread(end->eq, &event, &entry, sizeof entry, 10000, 0));
      if (event != FI_CONNREQ) die("fi_listen", "no request");
      open_endpoint(end, entry.info);
      FI(fi_accept(end->ep, NULL, 0));
    } else {
      if (!tcp_recv_all(fd, &end->theirs, sizeof end->theirs, 0)) die("peer", "gone");
      open_endpoint(end, end->info);
      FI(fi_connect(end->ep, end->theirs.name, NULL, 0));
    }
    await_connection(end);
  } else {
    open_endpoint(end, end->info);
    FI(fi_getname(&end->ep->fid, ours.name, &ours.name_len));
  }
  (void)provider, (void)host;
  ours.key = fi_mr_key(end->mr);
  ours.addr = end->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)end->memory : 0;
  tcp_send_all(fd, &ours, sizeof ours);
  if (!tcp_recv_all(fd, &end->theirs, sizeof end->theirs, 0)) die("peer", "gone");
  if (end->av && fi_av_insert(end->av, end->theirs.name, 1, &end->peer, 0, NULL) != 1) die("fi_av_insert", "no");
}

/* Takes completions of a queue; moves the other one too, for providers that only move when
 * asked. */
static size_t reap(struct fid_cq *cq, struct fid_cq *other) {
  struct fi_cq_entry entries[64];
  ssize_t n = fi_cq_read(cq, entries, 64);
  if (n == -FI_EAGAIN) {
    if (fi_cq_read(other, NULL, 0) == -FI_EAVAIL) die("completion", "error");
    return 0;
  }
  if (n < 0) {
    struct fi_cq_err_entry error = {0};
    fi_cq_readerr(cq, &error, 0);
    die("completion", fi_strerror(error.err ? error.err : (int)-n));
  }
  return (size_t)n;
}

static struct fi_context contexts[1024];

static void post_recv(struct end *end, size_t slot, size_t size) {
  FI(fi_recv(end->ep, end->memory + slot % SLOTS * 65536, size, end->desc, FI_ADDR_UNSPEC, &contexts[slot % SLOTS]));
}

static void post_send(struct end *end, size_t size) {
  ssize_t n;
  while ((n = fi_send(end->ep, end->memory, size, end->desc, end->peer, &contexts[SLOTS])) == -FI_EAGAIN)
    reap(end->tx, end->rx);
  FI(n);
}

static int serve(char **argument) {
  int fd = tcp_open(argument[1], argument[2], 1);
  struct end end = {.info = info_of(argument[0], argument[1], FI_SOURCE)};
  struct work work;
  open_domain(&end);
  meet(&end, fd, 1, argument[0], argument[1]);
  if (!tcp_recv_all(fd, &work, sizeof work, 0) || work.size == 0 || work.size > SIZE_MAX_B) die("work", "none");
  size_t size = work.is_write ? 8 : work.size;
  if (size > 65536) die("send", "64 KiB at most");
  for (size_t slot = 0; slot < SLOTS; slot++) post_recv(&end, slot, size);
  char word = 'r';
  tcp_send_all(fd, &word, 1);
  double cpu = cpu_s();
  size_t slot = 0;
  for (int turn = 0;; turn++) {
    size_t n = reap(end.rx, end.tx);
    for (; n > 0; n--, slot++) {
      post_recv(&end, slot, size);
      if (work.is_write) {
        tcp_send_all(fd, &word, 1);
      } else {
        post_send(&end, size);
      }
    }
    while (reap(end.tx, end.rx) > 0) {
    }
    if (turn % 1024 == 0 && recv(fd, &word, 1, MSG_DONTWAIT) == 1) break;
  }
  cpu = cpu_s() - cpu;
  tcp_send_all(fd, &cpu, sizeof cpu);
  return 0;
}

static size_t write_for(struct end *end, int fd, size_t size, double seconds, size_t depth, double *took) {
  size_t posted = 0, done = 0;
  char word;
  double start = now_s();
  while (now_s() - start < seconds) {
    while (posted - done < depth) {
      ssize_t n = fi_write(end->ep, end->memory, size, end->desc, end->peer, end->theirs.addr, end->theirs.key,
                           &contexts[32 + posted % 512]);
      if (n == -FI_EAGAIN) break;
      FI(n);
      posted++;
    }
    done += reap(end->tx, end->rx);
  }
  while (done < posted) done += reap(end->tx, end->rx);
  post_send(end, 8);
  while (recv(fd, &word, 1, MSG_DONTWAIT) != 1) reap(end->tx, end->rx);
  *took = now_s() - start;
  return posted;
}

static size_t ping_for(struct end *end, size_t size, double seconds, double *trips, size_t max) {
  size_t n = 0, slot = 0;
  double start = now_s(), last = start;
  while (n < max && last - start < seconds) {
    post_send(end, size);
    while (reap(end->rx, end->tx) == 0) {
    }
    while (reap(end->tx, end->rx) > 0) {
    }
    post_recv(end, slot++, size);
    double t = now_s();
    trips[n++] = t - last;
    last = t;
  }
  return n;
}

static int ask(char **argument) {
  int fd = tcp_open(argument[1], argument[2], 0);
  struct end end = {.info = info_of(argument[0], argument[1], 0)};
  struct work work = {.is_write = !strcmp(argument[3], "write"), .size = (uint32_t)strtoul(argument[4], NULL, 10)};
  double seconds = strtod(argument[5], NULL), theirs = 0, took = 0;
  size_t depth = strtoul(argument[6], NULL, 10), n;
  char word;
  if (depth == 0 || depth > 512) die("depth", "1 to 512");
  open_domain(&end);
  meet(&end, fd, 0, argument[0], argument[1]);
  for (size_t slot = 0; slot < SLOTS; slot++) post_recv(&end, slot, work.is_write ? 8 : work.size);
  tcp_send_all(fd, &work, sizeof work);
  while (recv(fd, &word, 1, MSG_DONTWAIT) != 1) reap(end.tx, end.rx);
  double *trips = malloc(SAMPLES_MAX * sizeof *trips), cpu;
  if (work.is_write) {
    write_for(&end, fd, work.size, 0.1, depth, &took);
    cpu = cpu_s();
    n = write_for(&end, fd, work.size, seconds, depth, &took);
  } else {
    ping_for(&end, work.size, 0.1, trips, SAMPLES_MAX);
    cpu = cpu_s();
    n = ping_for(&end, work.size, seconds, trips, SAMPLES_MAX);
  }
  cpu = cpu_s() - cpu;
  tcp_send_all(fd, &word, 1);
  while (recv(fd, &theirs, sizeof theirs, MSG_DONTWAIT) != sizeof theirs) reap(end.tx, end.rx);
  if (work.is_write) {
    double bytes = (double)n * work.size;
    printf("iterations=%zu seconds=%.6f gbps=%.4f mmsg_s=%.6f bytes=%.0f client_cpu_s=%.6f server_cpu_s=%.6f\n", n, took,
           bytes * 8 / took / 1e9, (double)n / took / 1e6, bytes, cpu, theirs);
  } else {
    print_latency(trips, n, cpu, theirs);
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 5 && !strcmp(argv[1], "serve")) return serve(argv + 2);
  if (argc == 8) return ask(argv + 1);
  die("usage", "fabric_bench serve PROVIDER ADDRESS PORT | fabric_bench PROVIDER ADDRESS PORT write|send SIZE SECONDS DEPTH");
}
