/* s3_cred.c: the chain of places that may hold an access key.
 *
 * States: no key yet; a key that never expires (environment, files); a temporary key until
 * expires_ms. `step` says which request of a fetch is on its way (STEP_IDLE: none):
 *     STS:        STEP_STS
 *     container:  STEP_CONTAINER
 *     instance:   STEP_TOKEN -> STEP_ROLE -> STEP_KEY
 * After a failed fetch nothing is asked before retry_ns, and `why` keeps the reason; requests that
 * need a key fail at once meanwhile, they do not pile up. Everything runs on the loop thread, so
 * there is no lock.
 */
#include "objstore/s3_cred.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "objstore/s3_xml.h"

enum {
    FILE_BYTES_MAX = 1 << 20,
    FILES_AGAIN_MS = 10000,
    REFRESH_BEFORE_MS = 5 * 60 * 1000,
    FETCH_IDLE_MS = 2000,
    FETCH_AGAIN_MS = 2000,
    ANSWER_MAX = 64 * 1024
};

enum source { SRC_NONE, SRC_ENV, SRC_FILES, SRC_STS, SRC_CONTAINER, SRC_INSTANCE };
enum step { STEP_IDLE, STEP_STS, STEP_CONTAINER, STEP_TOKEN, STEP_ROLE, STEP_KEY };

/* What the environment said at the start. */
struct env {
    char *id, *secret, *token;
    char *web_token_file, *role_arn, *session_name, *sts_endpoint;
    char *relative_uri, *full_uri, *container_token, *container_token_file;
    char *imds_endpoint;
    bool imds_off;
};

struct s3_cred {
    struct http *http;
    struct env env;
    char *cred_path, *config_path; /* NULL: nowhere to look */
    char profile[128], region[64];
    bool profile_named; /* by the configuration: the environment's key does not count */

    enum source source;
    struct s3_key key;
    bool have;
    int64_t expires_ms; /* wall clock; 0: never */
    int64_t files_ns;   /* when the files were read last; 0: never */

    struct http_req fetch;
    enum step step;
    struct sbuf url, body, answer;
    char header[S3_TOKEN_MAX + 64];
    char imds_token[512];
    int64_t retry_ns;
    char why[120];

    uint8_t refused[SHA256_BYTES]; /* hash of the key that was refused last */
    bool has_refused;
};

static char *env_copy(const char *name)
{
    const char *v = getenv(name);

    return v && *v ? strdup(v) : NULL;
}

static void wipe(char **s)
{
    if (*s)
        explicit_bzero(*s, strlen(*s));
    free(*s);
    *s = NULL;
}

static void wipe_buf(struct sbuf *b)
{
    if (b->p)
        explicit_bzero(b->p, b->cap);
    sbuf_free(b);
}

/* The path that a variable names, or ~/.aws/`name`; malloc'ed, NULL when there is no home. */
static char *aws_file_path(const char *variable, const char *name)
{
    const char *v = getenv(variable);
    const char *home = getenv("HOME");
    char *path = NULL;

    if (v && *v)
        return strdup(v);
    if (!home || !*home || asprintf(&path, "%s/.aws/%s", home, name) < 0)
        return NULL;
    return path;
}

struct s3_cred *s3_cred_new(struct http *http, const char *profile, const char *region)
{
    struct s3_cred *c = calloc(1, sizeof(*c));
    const char *off = getenv("AWS_EC2_METADATA_DISABLED");
    const char *named = getenv("AWS_PROFILE");

    if (!c)
        return NULL;
    c->http = http;
    c->profile_named = profile && *profile;
    if (!c->profile_named)
        profile = named && *named ? named : "default";
    snprintf(c->profile, sizeof(c->profile), "%s", profile);
    snprintf(c->region, sizeof(c->region), "%s", region);
    c->env = (struct env){
        .id = env_copy("AWS_ACCESS_KEY_ID"),
        .secret = env_copy("AWS_SECRET_ACCESS_KEY"),
        .token = env_copy("AWS_SESSION_TOKEN"),
        .web_token_file = env_copy("AWS_WEB_IDENTITY_TOKEN_FILE"),
        .role_arn = env_copy("AWS_ROLE_ARN"),
        .session_name = env_copy("AWS_ROLE_SESSION_NAME"),
        .sts_endpoint = env_copy("AWS_ENDPOINT_URL_STS"),
        .relative_uri = env_copy("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        .full_uri = env_copy("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        .container_token = env_copy("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
        .container_token_file = env_copy("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        .imds_endpoint = env_copy("AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        .imds_off = off && strcasecmp(off, "true") == 0,
    };
    c->cred_path = aws_file_path("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    c->config_path = aws_file_path("AWS_CONFIG_FILE", "config");
    c->answer.max = ANSWER_MAX;
    return c;
}

void s3_cred_free(struct s3_cred *c)
{
    if (!c)
        return;
    char **const all[] = {&c->env.id,
                          &c->env.secret,
                          &c->env.token,
                          &c->env.web_token_file,
                          &c->env.role_arn,
                          &c->env.session_name,
                          &c->env.sts_endpoint,
                          &c->env.relative_uri,
                          &c->env.full_uri,
                          &c->env.container_token,
                          &c->env.container_token_file,
                          &c->env.imds_endpoint};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        wipe(all[i]);
    free(c->cred_path);
    free(c->config_path);
    wipe_buf(&c->url);
    wipe_buf(&c->body);
    wipe_buf(&c->answer);
    explicit_bzero(c, sizeof(*c));
    free(c);
}

static int64_t now_ms(void)
{
    return clock_wall_ns() / NS_PER_MS;
}

/* ---- files ---- */

static char *read_text(const char *path, size_t *len)
{
    char *text = NULL;

    return path && io_read_file(AT_FDCWD, path, FILE_BYTES_MAX, &text, len) == 0 ? text : NULL;
}

static void drop_text(char *text, size_t len)
{
    if (text)
        explicit_bzero(text, len);
    free(text);
}

static bool key_from_ini(const char *text, const char *section, struct s3_key *key)
{
    struct s3_key k = {0};
    bool ok = s3_ini_get(text, section, "aws_access_key_id", k.id, sizeof(k.id)) &&
              s3_ini_get(text, section, "aws_secret_access_key", k.secret, sizeof(k.secret));

    if (ok) {
        s3_ini_get(text, section, "aws_session_token", k.token, sizeof(k.token));
        *key = k;
    }
    explicit_bzero(&k, sizeof(k));
    return ok;
}

/* In the config file the sections of all profiles but the default one carry a word before. */
static void config_section(const char *profile, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s", strcmp(profile, "default") == 0 ? "" : "profile ", profile);
}

static bool key_from_files(const struct s3_cred *c, struct s3_key *key)
{
    char section[160];
    size_t len = 0;
    char *text = read_text(c->cred_path, &len);
    bool ok = text && key_from_ini(text, c->profile, key);

    drop_text(text, len);
    if (ok)
        return true;
    len = 0;
    text = read_text(c->config_path, &len);
    config_section(c->profile, section, sizeof(section));
    ok = text && key_from_ini(text, section, key);
    drop_text(text, len);
    return ok;
}

bool s3_profile_setting(const char *profile, const char *name, char *out, size_t cap)
{
    char section[160];
    size_t len = 0;
    const char *named = getenv("AWS_PROFILE");
    char *path = aws_file_path("AWS_CONFIG_FILE", "config");
    char *text = read_text(path, &len);

    if (!profile || !*profile)
        profile = named && *named ? named : "default";
    config_section(profile, section, sizeof(section));
    bool ok = text && s3_ini_get(text, section, name, out, cap);
    drop_text(text, len);
    free(path);
    return ok;
}

/* Reads the files when their time has come. A file that has lost its key (it may be in the middle of
 * being rewritten) leaves the key that we have. */
static void load_files(struct s3_cred *c, bool now)
{
    int64_t t = clock_mono_ns();

    if (c->files_ns && !now && t - c->files_ns < FILES_AGAIN_MS * NS_PER_MS)
        return;
    c->files_ns = t;
    if (key_from_files(c, &c->key)) {
        c->source = SRC_FILES;
        c->have = true;
        c->expires_ms = 0;
    }
}

/* ---- fetching ---- */

static void fetch_step(struct s3_cred *c, enum step step);

static void fetch_failed(struct s3_cred *c, const char *why)
{
    log_debug(LC_STORE, "credentials: %s", why);
    snprintf(c->why, sizeof(c->why), "%s", why);
    c->step = STEP_IDLE;
    c->retry_ns = clock_mono_ns() + FETCH_AGAIN_MS * NS_PER_MS;
    http_resume(c->http);
}

static void fetch_ok(struct s3_cred *c, const struct s3_key *key, const char *expiration)
{
    c->key = *key;
    c->have = true;
    c->expires_ms = s3_iso_time_ms(expiration);
    if (c->expires_ms == 0 && expiration[0])
        c->expires_ms = now_ms() + REFRESH_BEFORE_MS; /* unreadable: ask again soon */
    c->source = c->step == STEP_STS         ? SRC_STS
                : c->step == STEP_CONTAINER ? SRC_CONTAINER
                                            : SRC_INSTANCE;
    c->step = STEP_IDLE;
    c->why[0] = '\0';
    /* A key that arrives expired would be fetched without end. */
    c->retry_ns = clock_mono_ns() + FETCH_AGAIN_MS * NS_PER_MS;
    http_resume(c->http);
}

static void json_key(struct s3_cred *c)
{
    const char *text = sbuf_cstr(&c->answer);
    char expiration[64] = "";
    struct s3_key k = {0};
    bool ok = s3_json_string(text, "AccessKeyId", k.id, sizeof(k.id)) &&
              s3_json_string(text, "SecretAccessKey", k.secret, sizeof(k.secret)) &&
              s3_json_string(text, "Token", k.token, sizeof(k.token));

    s3_json_string(text, "Expiration", expiration, sizeof(expiration));
    if (ok)
        fetch_ok(c, &k, expiration);
    else
        fetch_failed(c, "the metadata service answered without a key");
    explicit_bzero(&k, sizeof(k));
}

static void sts_key(struct s3_cred *c)
{
    struct xml x;
    enum xml_event ev;
    char expiration[64] = "";
    struct s3_key k = {0};

    xml_init(&x, sbuf_cstr(&c->answer), c->answer.len);
    while ((ev = xml_next(&x)) == XML_OPEN || ev == XML_CLOSE) {
        if (ev == XML_OPEN || x.depth < 2 || strcmp(x.stack[x.depth - 2], "Credentials") != 0)
            continue;
        const char *text = sbuf_cstr(&x.text);
        if (strcmp(x.name, "AccessKeyId") == 0)
            snprintf(k.id, sizeof(k.id), "%s", text);
        else if (strcmp(x.name, "SecretAccessKey") == 0)
            snprintf(k.secret, sizeof(k.secret), "%s", text);
        else if (strcmp(x.name, "SessionToken") == 0)
            snprintf(k.token, sizeof(k.token), "%s", text);
        else if (strcmp(x.name, "Expiration") == 0)
            snprintf(expiration, sizeof(expiration), "%s", text);
    }
    if (x.text.p)
        explicit_bzero(x.text.p, x.text.cap);
    xml_free(&x);
    if (k.id[0] && k.secret[0] && k.token[0])
        fetch_ok(c, &k, expiration);
    else
        fetch_failed(c, "STS answered without a key");
    explicit_bzero(&k, sizeof(k));
}

static void fetch_done(struct http_req *q)
{
    struct s3_cred *c = container_of(q, struct s3_cred, fetch);
    static const char *const who[] = {"",
                                      "STS",
                                      "the container's credential service",
                                      "the instance metadata service",
                                      "the instance metadata service",
                                      "the instance metadata service"};
    char why[120];

    if (q->end != HTTP_DONE || q->status != 200 || c->answer.bad) {
        if (q->end == HTTP_DONE)
            snprintf(why, sizeof(why), "%s answered %d", who[c->step], q->status);
        else
            snprintf(why, sizeof(why), "%s: %.60s", who[c->step], q->text);
        fetch_failed(c, why);
        return;
    }
    switch (c->step) {
    case STEP_STS:
        sts_key(c);
        break;
    case STEP_TOKEN:
        snprintf(c->imds_token, sizeof(c->imds_token), "%s", sbuf_cstr(&c->answer));
        fetch_step(c, STEP_ROLE);
        break;
    case STEP_ROLE:
        fetch_step(c, STEP_KEY);
        break;
    default:
        json_key(c);
        break;
    }
}

static int fetch_data(struct http_req *q, const char *p, size_t n)
{
    struct s3_cred *c = container_of(q, struct s3_cred, fetch);

    sbuf_add(&c->answer, p, n);
    return c->answer.bad ? -EMSGSIZE : 0;
}

static ssize_t fetch_body(struct http_req *q, void *buf, size_t cap, uint64_t off)
{
    struct s3_cred *c = container_of(q, struct s3_cred, fetch);
    size_t n = c->body.len - (size_t)off;

    n = n < cap ? n : cap;
    memcpy(buf, c->body.p + off, n);
    return (ssize_t)n;
}

static int fetch_prepare(struct http_req *q)
{
    (void)q; /* all is set already */
    return 0;
}

static void no_newline(char *s)
{
    s[strcspn(s, "\r\n")] = '\0';
}

static bool web_identity_request(struct s3_cred *c)
{
    char *token = NULL;
    size_t len = 0;

    if (io_read_file(AT_FDCWD, c->env.web_token_file, FILE_BYTES_MAX, &token, &len) < 0) {
        fetch_failed(c, "the file of AWS_WEB_IDENTITY_TOKEN_FILE cannot be read");
        return false;
    }
    no_newline(token);
    if (c->env.sts_endpoint)
        sbuf_fmt(&c->url, "%s/", c->env.sts_endpoint);
    else
        sbuf_fmt(&c->url, "https://sts.%s.amazonaws.com/", c->region);
    sbuf_str(&c->body, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=");
    s3_encode(&c->body, c->env.role_arn, false);
    sbuf_str(&c->body, "&RoleSessionName=");
    s3_encode(&c->body, c->env.session_name ? c->env.session_name : "sluicefs", false);
    sbuf_str(&c->body, "&WebIdentityToken=");
    s3_encode(&c->body, token, false);
    drop_text(token, len);
    c->fetch.method = "POST";
    c->fetch.has_body = true;
    c->fetch.body_len = c->body.len;
    snprintf(c->header, sizeof(c->header), "Content-Type: application/x-www-form-urlencoded");
    return true;
}

/* Plain http only to where the key cannot be overheard: this host and its link-local services. */
static bool full_uri_allowed(const char *uri)
{
    static const char *const hosts[] = {"127.0.0.1",     "localhost",      "[::1]",
                                        "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};

    if (strncmp(uri, "https://", 8) == 0)
        return true;
    if (strncmp(uri, "http://", 7) != 0)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
        size_t n = strlen(hosts[i]);
        if (strncmp(uri + 7, hosts[i], n) == 0 && strchr(":/", uri[7 + n]))
            return true;
    }
    return false;
}

static bool container_request(struct s3_cred *c)
{
    char *text = NULL;
    size_t len = 0;

    if (c->env.relative_uri) {
        sbuf_fmt(&c->url, "http://169.254.170.2%s", c->env.relative_uri);
    } else if (full_uri_allowed(c->env.full_uri)) {
        sbuf_str(&c->url, c->env.full_uri);
    } else {
        fetch_failed(c, "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https or a local address");
        return false;
    }
    if (c->env.container_token_file) {
        if (io_read_file(AT_FDCWD, c->env.container_token_file, S3_TOKEN_MAX, &text, &len) < 0) {
            fetch_failed(c, "the file of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE cannot be read");
            return false;
        }
        no_newline(text);
        snprintf(c->header, sizeof(c->header), "Authorization: %s", text);
        drop_text(text, len);
    } else if (c->env.container_token && !strpbrk(c->env.container_token, "\r\n")) {
        snprintf(c->header, sizeof(c->header), "Authorization: %s", c->env.container_token);
    }
    return true;
}

static void imds_request(struct s3_cred *c, enum step step, const char *role)
{
    const char *base = c->env.imds_endpoint ? c->env.imds_endpoint : "http://169.254.169.254";
    size_t n = strlen(base);

    while (n > 0 && base[n - 1] == '/')
        n--;
    if (step == STEP_TOKEN) {
        sbuf_fmt(&c->url, "%.*s/latest/api/token", (int)n, base);
        snprintf(c->header, sizeof(c->header), "X-aws-ec2-metadata-token-ttl-seconds: 21600");
        c->fetch.method = "PUT";
        c->fetch.has_body = true;
        return;
    }
    sbuf_fmt(&c->url, "%.*s/latest/meta-data/iam/security-credentials/%s", (int)n, base, role);
    snprintf(c->header, sizeof(c->header), "X-aws-ec2-metadata-token: %s", c->imds_token);
}

static void fetch_step(struct s3_cred *c, enum step step)
{
    char role[256];

    snprintf(role, sizeof(role), "%s", step == STEP_KEY ? sbuf_cstr(&c->answer) : "");
    no_newline(role);
    no_newline(c->imds_token);
    c->step = step;
    sbuf_clear(&c->url);
    sbuf_clear(&c->body);
    sbuf_clear(&c->answer);
    c->header[0] = '\0';
    c->fetch = (struct http_req){.class = HTTP_INTERNAL,
                                 .idle_ms = FETCH_IDLE_MS,
                                 .prepare = fetch_prepare,
                                 .body = fetch_body,
                                 .data = fetch_data,
                                 .done = fetch_done,
                                 .method = "GET"};
    if (step == STEP_STS ? !web_identity_request(c)
                         : step == STEP_CONTAINER && !container_request(c))
        return;
    if (step >= STEP_TOKEN)
        imds_request(c, step, role);
    if (c->url.bad || c->body.bad) {
        fetch_failed(c, "out of memory");
        return;
    }
    c->fetch.url = c->url.p;
    if (c->header[0])
        c->fetch.headers[c->fetch.headers_n++] = c->header;
    http_submit(c->http, &c->fetch);
}

/* The first request of the fetch that this machine is set up for; STEP_IDLE: none. */
static enum step fetch_kind(const struct s3_cred *c)
{
    if (c->env.web_token_file && c->env.role_arn && !c->profile_named)
        return STEP_STS;
    if (c->env.relative_uri || c->env.full_uri)
        return STEP_CONTAINER;
    return c->env.imds_off ? STEP_IDLE : STEP_TOKEN;
}

static void fetch_begin(struct s3_cred *c)
{
    enum step step = fetch_kind(c);

    if (c->step == STEP_IDLE && step != STEP_IDLE && clock_mono_ns() >= c->retry_ns)
        fetch_step(c, step);
}

/* ---- the face ---- */

static int no_key(struct s3_cred *c, bool *transient, char *why, size_t cap)
{
    *transient = c->why[0] != '\0' && c->have; /* it had one: the service is away for now */
    if (c->have)
        snprintf(why, cap, "the temporary key has expired and no new one came: %s", c->why);
    else
        snprintf(why, cap,
                 "no access key: looked at AWS_ACCESS_KEY_ID, profile '%.40s' in ~/.aws%s%.90s",
                 c->profile,
                 c->env.imds_off ? "" : ", metadata service: ", c->env.imds_off ? "" : c->why);
    return -EACCES;
}

int s3_cred_get(struct s3_cred *c, struct s3_key *ret, bool *transient, char *why, size_t why_cap)
{
    bool temporary = c->source >= SRC_STS;

    *transient = false;
    if (!c->have && c->env.id && c->env.secret && !c->profile_named) {
        snprintf(c->key.id, sizeof(c->key.id), "%s", c->env.id);
        snprintf(c->key.secret, sizeof(c->key.secret), "%s", c->env.secret);
        snprintf(c->key.token, sizeof(c->key.token), "%s", c->env.token ? c->env.token : "");
        c->source = SRC_ENV;
        c->have = true;
    } else if (c->source == SRC_FILES || (!temporary && !c->have && fetch_kind(c) != STEP_STS)) {
        load_files(c, false);
    }
    if (c->have && c->source < SRC_STS) {
        *ret = c->key;
        return 0;
    }
    int64_t left = c->have && c->expires_ms ? c->expires_ms - now_ms() : INT64_MAX;
    if (!c->have || left < REFRESH_BEFORE_MS)
        fetch_begin(c);
    if (c->have && left > 0) {
        *ret = c->key;
        return 0;
    }
    return c->step != STEP_IDLE ? HTTP_HOLD : no_key(c, transient, why, why_cap);
}

bool s3_cred_refused(struct s3_cred *c, const struct s3_key *key)
{
    uint8_t hash[SHA256_BYTES];
    struct sbuf all = {0};

    if (!c->have || strcmp(key->id, c->key.id) != 0 || strcmp(key->token, c->key.token) != 0)
        return true; /* there is another one already */
    sbuf_fmt(&all, "%s\n%s\n%s", key->id, key->secret, key->token);
    sha256_once(sbuf_cstr(&all), all.len, hash);
    wipe_buf(&all);
    if (c->has_refused && memcmp(hash, c->refused, sizeof(hash)) == 0) {
        if (c->source == SRC_FILES)
            load_files(c, true);
        return strcmp(key->id, c->key.id) != 0 || strcmp(key->token, c->key.token) != 0;
    }
    memcpy(c->refused, hash, sizeof(hash));
    c->has_refused = true;
    if (c->source == SRC_FILES) {
        load_files(c, true);
    } else if (c->source >= SRC_STS) {
        c->expires_ms = 1; /* long ago: the next request waits for a new one */
        c->retry_ns = 0;
    } else {
        return false; /* the environment of a running process does not change */
    }
    return true;
}
