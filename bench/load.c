// A client that costs little: N connections on loopback, each asking again as soon as answered.
//
//   load PORT PATH CONNECTIONS SECONDS BODY_FILE [KEY]
//
// Prints one JSON line: answers, events of streamed answers, latency and time to first byte
// (microseconds), and how many answers were not 200 or broke off.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { HEAD = 16384, TAIL = 7, SAMPLES = 1 << 21 };
static const int64_t GRACE = 1000000000;  // what has begun may end, but for long streams

typedef struct {
  int fd, status, chunked, head_done, head_len, tail_len, sent;
  uint32_t waits;
  int64_t asked, first, length, got;
  char head[HEAD], tail[TAIL];
} Line;

static int epoll_fd, port, request_len, streaming, idle;
static int64_t until;
static char *request;
static double latency[SAMPLES], first_byte[SAMPLES];
static long answers, events, broken, refused;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void push(Line *l) {  // sends what the socket takes, and waits where it takes no more
  while (l->sent < request_len) {
    ssize_t n = send(l->fd, request + l->sent, request_len - l->sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return;  // reading will say so too
    if (n < 0) break;
    l->sent += n;
  }
  uint32_t what = EPOLLIN | (l->sent < request_len ? EPOLLOUT : 0);
  if (what == l->waits) return;
  struct epoll_event e = {.events = l->waits = what, .data.ptr = l};
  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, l->fd, &e);
}

static void ask(Line *l) {
  l->asked = now(), l->first = 0, l->head_done = l->head_len = l->tail_len = l->chunked = 0;
  l->length = -1, l->got = 0, l->sent = 0;
  push(l);
}

static void open_line(Line *l) {
  struct sockaddr_in a = {.sin_family = AF_INET,
                          .sin_port = htons(port),
                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  l->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(l->fd, (void *)&a, sizeof a)) perror("connect"), exit(1);
  int one = 1;
  setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(l->fd, F_SETFL, O_NONBLOCK);
  struct epoll_event e = {.events = l->waits = EPOLLIN, .data.ptr = l};
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, l->fd, &e);
  ask(l);
}

static void again(Line *l) {  // nobody begins what would be cut off at the end
  if (now() < until) ask(l);
  else idle++;
}

static void answered(Line *l) {
  if (l->status != 200) refused++;
  if (answers < SAMPLES) {
    latency[answers] = (now() - l->asked) / 1e3;
    first_byte[answers++] = l->first / 1e3;
  }
  again(l);
}

static void reopen(Line *l) {
  int by_close = l->head_done && l->length < 0 && !l->chunked;
  close(l->fd);
  if (by_close) {
    if (answers < SAMPLES) {
      latency[answers] = (now() - l->asked) / 1e3;
      first_byte[answers++] = l->first / 1e3;
    }
  } else if (++broken > 2000) {
    exit(2);
  }
  open_line(l);
}

// Takes the head off the bytes; gives where the body begins, or NULL when more is needed.
static char *take_head(Line *l, char *data, ssize_t n) {
  int room = HEAD - 1 - l->head_len, old = l->head_len, take = n < room ? n : room;
  memcpy(l->head + old, data, take);
  l->head_len += take;
  l->head[l->head_len] = 0;
  char *end = strstr(l->head, "\r\n\r\n");
  if (!end) return NULL;
  l->head_done = 1;
  l->status = atoi(l->head + 9);
  int head = end - l->head + 4;
  end[2] = 0;
  char *field = strcasestr(l->head, "content-length:");
  if (field) l->length = atoll(field + 15);
  l->chunked = strcasestr(l->head, "transfer-encoding: chunked") != NULL;
  return data + head - old;
}

static int body_over(Line *l, char *data, ssize_t n) {
  if (l->length >= 0) return l->got >= l->length;
  if (!l->chunked) return 0;
  char joined[2 * TAIL];
  int keep = n < TAIL ? n : TAIL;
  memcpy(joined, l->tail, l->tail_len);
  memcpy(joined + l->tail_len, data + n - keep, keep);
  int total = l->tail_len + keep, from = total > TAIL ? total - TAIL : 0;
  l->tail_len = total - from;
  memcpy(l->tail, joined + from, l->tail_len);
  return (l->tail_len == TAIL && !memcmp(l->tail, "\r\n0\r\n\r\n", TAIL)) ||
         (l->tail_len == 5 && !memcmp(l->tail, "0\r\n\r\n", 5));
}

static void on_bytes(Line *l) {
  static char buffer[1 << 18];
  ssize_t n = recv(l->fd, buffer, sizeof buffer, 0);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) return reopen(l);
  char *data = buffer, *end = buffer + n;
  if (!l->head_done && !(data = take_head(l, data, n))) return;
  if (data == end) {
    if (l->length == 0) answered(l);
    return;
  }
  if (!l->first) l->first = now() - l->asked;
  l->got += end - data;
  if (streaming)
    for (char *at = data; (at = memmem(at, end - at, "data: ", 6)); at += 6) events++;
  if (body_over(l, data, end - data)) answered(l);
}

static int by_size(const void *a, const void *b) {
  double x = *(double *)a, y = *(double *)b;
  return x < y ? -1 : x > y;
}

static double at(double *sorted, double share) {
  return answers ? sorted[(long)(share * (answers - 1))] : 0;
}

static void write_request(const char *path, const char *file, const char *key) {
  FILE *body = fopen(file, "rb");
  if (!body) perror(file), exit(1);
  fseek(body, 0, SEEK_END);
  long n = ftell(body);
  rewind(body);
  request = calloc(1, n + 4096);
  int head = snprintf(request, 4096,
                      "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n"
                      "Content-Type: application/json\r\nAccept: */*\r\nUser-Agent: load\r\n"
                      "Content-Length: %ld\r\n\r\n",
                      path, port, key, n);
  request_len = head + fread(request + head, 1, n, body);
  streaming = memmem(request, request_len, "\"stream\":true", 13) != NULL;
  fclose(body);
}

int main(int argc, char **argv) {
  if (argc < 6) return fprintf(stderr, "usage: see the head of load.c\n"), 2;
  signal(SIGPIPE, SIG_IGN);
  port = atoi(argv[1]);
  int count = atoi(argv[3]);
  double seconds = atof(argv[4]);
  write_request(argv[2], argv[5], argc > 6 ? argv[6] : "none");
  epoll_fd = epoll_create1(0);
  int64_t begun = now();
  until = begun + seconds * 1e9;
  Line *lines = calloc(count, sizeof *lines);
  for (int i = 0; i < count; i++) open_line(&lines[i]);
  struct epoll_event ready[512];
  while (now() < until + GRACE && idle < count) {
    int n = epoll_wait(epoll_fd, ready, 512, 20);
    for (int i = 0; i < n; i++) {
      if (ready[i].events & EPOLLOUT) push(ready[i].data.ptr);
      if (ready[i].events & ~EPOLLOUT) on_bytes(ready[i].data.ptr);
    }
  }
  double elapsed = (now() - begun) / 1e9;
  qsort(latency, answers, sizeof *latency, by_size);
  qsort(first_byte, answers, sizeof *first_byte, by_size);
  printf("{\"answers\":%ld,\"events\":%ld,\"seconds\":%.3f,\"p50_us\":%.0f,\"p99_us\":%.0f,"
         "\"ttfb50_us\":%.0f,\"ttfb99_us\":%.0f,\"broken\":%ld,\"refused\":%ld}\n",
         answers, events, elapsed, at(latency, .5), at(latency, .99), at(first_byte, .5),
         at(first_byte, .99), broken, refused);
  return 0;
}
