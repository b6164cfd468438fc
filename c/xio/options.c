/* Options: the string behind the driver's name. */
#include "xio.h"

#include <errno.h>

enum option { OPTION_CHANNEL = 1, OPTION_DEVICE, OPTION_MODE, OPTION_RATE, OPTION_SLAB, OPTION_SLABS, OPTION_CRC, OPTION_FALLBACK,
              OPTION_PORT, OPTION_INTERFACE, OPTION_STATS, OPTION_PROTECT, OPTION_ENGINE_CPUS };

static const struct options DEFAULTS = {
    .channel = "iwarp-udt", .device = "soft-udt", .slab = 1 << 20, .slabs = 128, .mode = MODE_WRITE, .crc = true};

/* A number with K, M or G behind it: times 1024 for bytes, times 1000 for rates. */
static bool parse_size(const char *text, uint64_t unit, uint64_t *out) {
  static const char UNITS[] = "KMG";
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (end == text || errno != 0 || text[0] == '-') {
    return false;
  }
  const char *found = *end != '\0' ? strchr(UNITS, *end & ~0x20) : NULL;
  for (const char *at = UNITS; found != NULL && at <= found; at++) {
    if (value > UINT64_MAX / unit) {
      return false;
    }
    value *= unit;
  }
  *out = value;
  return end[found != NULL] == '\0';
}

static bool copy_text(char *to, size_t room, const char *text) {
  return (size_t)snprintf(to, room, "%s", text) < room && text[0] != '\0';
}

static bool set_channel(struct options *options, const char *text) {
  static const char *const CHANNELS[][2] = {
      {"iwarp-tcp", "soft-tcp"}, {"iwarp-udt", "soft-udt"}, {"verbs", "ibv"}, {"udt", "soft-udt"}};
  for (size_t i = 0; i < sizeof CHANNELS / sizeof CHANNELS[0]; i++) {
    if (strcmp(text, CHANNELS[i][0]) == 0) {
      strcpy(options->channel, CHANNELS[i][0]);
      if (!options->device_named) {
        strcpy(options->device, CHANNELS[i][1]);
      }
      options->stream = strcmp(text, "udt") == 0;
      return true;
    }
  }
  return false;
}

/* One of two words. */
static bool either(const char *text, const char *no, const char *yes, bool *out) {
  *out = strcmp(text, yes) == 0;
  return *out || strcmp(text, no) == 0;
}

static bool set_option(struct options *options, int option, const char *text) {
  uint64_t number = 0;
  bool flag, good;
  switch (option) {
  case OPTION_CHANNEL:
    return set_channel(options, text);
  case OPTION_DEVICE:
    /* Whatever the order of the two. */
    options->device_named = true;
    return copy_text(options->device, sizeof options->device, text);
  case OPTION_INTERFACE:
    return copy_text(options->interface, sizeof options->interface, text);
  case OPTION_STATS:
    return copy_text(options->stats, sizeof options->stats, text);
  case OPTION_PROTECT:
    return copy_text(options->protect, sizeof options->protect, text);
  case OPTION_ENGINE_CPUS:
    return copy_text(options->engine_cpus, sizeof options->engine_cpus, text) && strspn(text, "0123456789,-") == strlen(text);
  case OPTION_MODE:
    good = either(text, "write", "send", &flag);
    options->mode = flag ? MODE_SEND : MODE_WRITE;
    return good;
  case OPTION_CRC:
    return either(text, "no", "yes", &options->crc);
  case OPTION_FALLBACK:
    return either(text, "no", "tcp", &options->fallback);
  case OPTION_RATE:
    return parse_size(text, 1000, &options->rate_bps);
  case OPTION_SLAB:
    good = parse_size(text, 1024, &number) && number >= SLAB_MIN && number <= SLAB_MAX;
    options->slab = (uint32_t)number;
    return good;
  case OPTION_SLABS:
    good = parse_size(text, 1024, &number) && number >= SLABS_MIN && number <= SLABS_MAX;
    options->slabs = (uint32_t)number;
    return good;
  default:
    good = parse_size(text, 1, &number) && number < 65535;
    options->port = (int)number;
    return good;
  }
}

/* What a value must be, for each option of the string. */
static const struct known {
  const char *name, *values;
  int option;
} KNOWN[] = {
    {"channel", "iwarp-udt, iwarp-tcp, udt or verbs", OPTION_CHANNEL},
    {"device", "a name that `haul devices` lists", OPTION_DEVICE},
    {"mode", "write or send", OPTION_MODE},
    {"rate", "bits per second, with K, M or G", OPTION_RATE},
    {"slab", "4K to 64M", OPTION_SLAB},
    {"slabs", "4 to 1024", OPTION_SLABS},
    {"crc", "yes or no", OPTION_CRC},
    {"fallback", "no or tcp", OPTION_FALLBACK},
    {"port", "0 to 65534", OPTION_PORT},
    {"interface", "an address of this host", OPTION_INTERFACE},
    {"stats", "a path", OPTION_STATS},
    {"protect", "key:FILE, key:FILE,PUBLIC-KEY or cert:CHAIN,KEY,ROOTS (%2C in the place of each comma)", OPTION_PROTECT},
    {"engine-cpus", "processors: 1, 2-3 or 4%2C6 (%2C in the place of a comma)", OPTION_ENGINE_CPUS},
};
#define KNOWN_COUNT (sizeof KNOWN / sizeof KNOWN[0])

/* Called by XIO for an option of the string. GridFTP does not look at what comes of it, so it is
 * kept for whoever opens. */
static globus_result_t parse_option(void *attr, const char *key, const char *value, int option,
                                    globus_xio_driver_attr_cntl_t unused) {
  struct options *options = attr;
  (void)unused;
  if (set_option(options, option, value)) {
    return GLOBUS_SUCCESS;
  }
  const char *values = "";
  for (size_t i = 0; i < KNOWN_COUNT; i++) {
    values = KNOWN[i].option == option ? KNOWN[i].values : values;
  }
  if (options->wrong[0] == '\0') {
    snprintf(options->wrong, sizeof options->wrong, "option %s=%s cannot be: it must be %s", key, value, values);
  }
  return failure(GLOBUS_XIO_ERROR_PARAMETER, "%s", options->wrong);
}

globus_xio_string_cntl_table_t string_options[KNOWN_COUNT + 1];

void options_init(void) {
  for (size_t i = 0; i < KNOWN_COUNT; i++) {
    string_options[i] = (globus_xio_string_cntl_table_t){KNOWN[i].name, KNOWN[i].option, parse_option};
  }
}

globus_result_t attr_copy(void **out, void *from) {
  struct options *options = malloc(sizeof *options);
  if (options == NULL) {
    return no_memory();
  }
  *options = *(const struct options *)from;
  *out = options;
  return GLOBUS_SUCCESS;
}

globus_result_t attr_init(void **out) {
  struct options options = DEFAULTS;
  return attr_copy(out, &options);
}

globus_result_t attr_cntl(void *attr, int command, va_list arguments) {
  (void)attr, (void)arguments;
  return failure(GLOBUS_XIO_ERROR_COMMAND, "command %d is not known", command);
}

globus_result_t attr_destroy(void *attr) {
  free(attr);
  return GLOBUS_SUCCESS;
}

/* What needs a channel of the library, and what would leave a connection without the protection
 * that was asked for: by the options, or by the environment of a server, because a client's options
 * replace those of the server. */
static void check_together(struct options *options) {
  const char *required = getenv("HAUL_XIO_PROTECT");
  bool software = strncmp(options->device, "soft", 4) == 0;
  bool engine = strncmp(options->device, "engine", 6) == 0;
  if (options->wrong[0] != '\0') {
    return;
  }
  if (options->engine_cpus[0] != '\0' && !software) {
    strcpy(options->wrong, engine ? "engine-cpus is for engines of this process; haul engine run has --cpus"
                                  : "engine-cpus needs channel=iwarp-udt, iwarp-tcp or udt");
    return;
  }
  if (options->protect[0] == '\0') {
    if (required != NULL && required[0] != '\0') {
      strcpy(options->wrong, "this host takes no connection without protect (HAUL_XIO_PROTECT)");
    }
  } else if (options->fallback) {
    strcpy(options->wrong, "protect and fallback=tcp exclude each other: a plain connection is not protected");
  } else if (!software && !engine) {
    strcpy(options->wrong, "protect needs channel=iwarp-udt, iwarp-tcp or udt, or a device of an engine");
  }
}

globus_result_t options_of(const void *attr, struct options *options) {
  *options = attr != NULL ? *(const struct options *)attr : DEFAULTS;
  check_together(options);
  if (options->wrong[0] != '\0') {
    return failure(GLOBUS_XIO_ERROR_PARAMETER, "%s", options->wrong);
  }
  if (!loop_start()) {
    return failure(GLOBUS_XIO_ERROR_SYSTEM_RESOURCE, "no way into Globus' loop; set GLOBUS_THREAD_MODEL=pthread");
  }
  return GLOBUS_SUCCESS;
}
