/* s3_xml.c: a pull reader for the subset of XML that S3 servers send, and what is read with it.
 *
 * The reader keeps the names of the open elements; every close tag must match. Text is decoded
 * (entities, CDATA) into one buffer that is emptied at each tag, so a leaf element's text is
 * complete at its close. Comments, declarations and attributes are skipped; a DOCTYPE is refused:
 * no server needs one and entity definitions are an attack.
 * Invariants: p <= end; depth <= XML_DEPTH_MAX; the text is at most XML_TEXT_MAX bytes; every step
 * consumes at least one byte or ends.
 */
#include "objstore/s3_xml.h"

#include <errno.h>
#include <time.h>

void xml_init(struct xml *x, const char *p, size_t len)
{
    *x = (struct xml){.p = p, .end = p + len, .text = {.max = XML_TEXT_MAX}};
    if (len >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) /* byte order mark */
        x->p += 3;
}

void xml_free(struct xml *x)
{
    sbuf_free(&x->text);
}

static bool at(const struct xml *x, const char *word)
{
    size_t n = strlen(word);

    return (size_t)(x->end - x->p) >= n && memcmp(x->p, word, n) == 0;
}

/* Moves behind the next `word`; false when there is none. */
static bool skip_past(struct xml *x, const char *word)
{
    const char *hit = memmem(x->p, (size_t)(x->end - x->p), word, strlen(word));

    if (!hit)
        return false;
    x->p = hit + strlen(word);
    return true;
}

static void add_utf8(struct sbuf *b, unsigned long c)
{
    char u[4];
    size_t n = 0;

    if (c < 0x80) {
        u[n++] = (char)c;
    } else if (c < 0x800) {
        u[n++] = (char)(0xc0 | c >> 6);
        u[n++] = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        u[n++] = (char)(0xe0 | c >> 12);
        u[n++] = (char)(0x80 | (c >> 6 & 0x3f));
        u[n++] = (char)(0x80 | (c & 0x3f));
    } else {
        u[n++] = (char)(0xf0 | c >> 18);
        u[n++] = (char)(0x80 | (c >> 12 & 0x3f));
        u[n++] = (char)(0x80 | (c >> 6 & 0x3f));
        u[n++] = (char)(0x80 | (c & 0x3f));
    }
    sbuf_add(b, u, n);
}

/* At '&'. Decodes one reference. */
static bool reference(struct xml *x)
{
    static const struct {
        const char *name;
        char c;
    } named[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    size_t left = (size_t)(x->end - x->p);
    const char *semi = memchr(x->p, ';', left < 16 ? left : 16);
    char ref[16] = {0};

    if (!semi || semi - x->p < 2)
        return false;
    memcpy(ref, x->p + 1, (size_t)(semi - x->p - 1));
    x->p = semi + 1;
    if (ref[0] == '#') {
        int base = ref[1] == 'x' || ref[1] == 'X' ? 16 : 10;
        const char *digits = base == 16 ? ref + 2 : ref + 1;
        char *stop;
        unsigned long c = strtoul(digits, &stop, base);
        /* strtoul would take signs and spaces. */
        if (!strchr("0123456789abcdefABCDEF", digits[0]) || !digits[0] || *stop || c == 0 ||
            c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            return false;
        add_utf8(&x->text, c);
        return true;
    }
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
        if (strcmp(ref, named[i].name) == 0) {
            sbuf_char(&x->text, named[i].c);
            return true;
        }
    return false;
}

static bool space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* At the first character of a tag's name. Leaves p behind it and the local name in x->name. */
static bool tag_name(struct xml *x)
{
    const char *start = x->p;

    while (x->p < x->end && !space(*x->p) && *x->p != '>' && *x->p != '/' && *x->p != '<')
        x->p++;
    size_t n = (size_t)(x->p - start);
    const char *colon = memchr(start, ':', n);
    if (colon) {
        n -= (size_t)(colon + 1 - start);
        start = colon + 1;
    }
    if (n == 0 || n >= XML_NAME_MAX || memchr(start, '\0', n))
        return false;
    memcpy(x->name, start, n);
    x->name[n] = '\0';
    return true;
}

/* Behind the name of an open tag: skips attributes up to and with '>'. */
static bool tag_rest(struct xml *x)
{
    char quote = 0;

    for (; x->p < x->end; x->p++) {
        if (quote) {
            if (*x->p == quote)
                quote = 0;
        } else if (*x->p == '"' || *x->p == '\'') {
            quote = *x->p;
        } else if (*x->p == '<') {
            return false;
        } else if (*x->p == '>') {
            x->empty = x->p[-1] == '/';
            x->p++;
            return true;
        }
    }
    return false;
}

static enum xml_event open_tag(struct xml *x)
{
    x->p++;
    if (x->depth == XML_DEPTH_MAX || !tag_name(x) || !tag_rest(x))
        return XML_BAD;
    memcpy(x->stack[x->depth++], x->name, XML_NAME_MAX);
    sbuf_clear(&x->text);
    return XML_OPEN;
}

static enum xml_event close_tag(struct xml *x)
{
    if (x->depth == 0 || strcmp(x->stack[x->depth - 1], x->name) != 0 || x->text.bad)
        return XML_BAD;
    x->closing = true;
    return XML_CLOSE;
}

enum xml_event xml_next(struct xml *x)
{
    if (x->closing) {
        x->closing = false;
        x->depth--;
        sbuf_clear(&x->text);
        if (x->depth == 0)
            return XML_END;
    }
    if (x->empty) {
        x->empty = false;
        return close_tag(x);
    }
    while (x->p < x->end) {
        if (*x->p == '&') {
            if (x->depth == 0 || !reference(x))
                return XML_BAD;
        } else if (*x->p != '<') {
            if (x->depth == 0 && !space(*x->p))
                return XML_BAD;
            const char *stop = x->p + 1;
            while (stop < x->end && *stop != '<' && *stop != '&')
                stop++;
            if (x->depth)
                sbuf_add(&x->text, x->p, (size_t)(stop - x->p));
            else
                stop = x->p + 1;
            x->p = stop;
        } else if (at(x, "</")) {
            x->p += 2;
            if (!tag_name(x))
                return XML_BAD;
            while (x->p < x->end && space(*x->p))
                x->p++;
            if (x->p == x->end || *x->p++ != '>')
                return XML_BAD;
            return close_tag(x);
        } else if (at(x, "<!--")) {
            if (!skip_past(x, "-->"))
                return XML_BAD;
        } else if (at(x, "<![CDATA[")) {
            const char *from = x->p + 9;
            if (x->depth == 0 || !skip_past(x, "]]>"))
                return XML_BAD;
            if (x->p - 3 > from)
                sbuf_add(&x->text, from, (size_t)(x->p - 3 - from));
        } else if (at(x, "<?")) {
            if (!skip_past(x, "?>"))
                return XML_BAD;
        } else if (at(x, "<!")) {
            return XML_BAD;
        } else {
            return open_tag(x);
        }
    }
    return XML_BAD; /* the document ended inside an element, or was empty */
}

static void copy(char *to, size_t cap, const struct sbuf *text)
{
    size_t n = text->len < cap - 1 ? text->len : cap - 1;

    memcpy(to, sbuf_cstr(text), n);
    to[n] = '\0';
    /* It goes into logs and onto terminals. */
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)to[i] < ' ' || to[i] == 0x7f)
            to[i] = ' ';
}

static void error_part(struct s3_error *e, const struct xml *x)
{
    if (strcmp(x->name, "Code") == 0)
        copy(e->code, sizeof(e->code), &x->text);
    else if (strcmp(x->name, "Message") == 0)
        copy(e->message, sizeof(e->message), &x->text);
    else if (strcmp(x->name, "RequestId") == 0)
        copy(e->request_id, sizeof(e->request_id), &x->text);
    else if (strcmp(x->name, "Region") == 0)
        copy(e->region, sizeof(e->region), &x->text);
}

int s3_xml_error(const char *p, size_t len, struct s3_error *ret)
{
    struct xml x;
    enum xml_event ev;
    bool is_error = false;

    *ret = (struct s3_error){0};
    xml_init(&x, p, len);
    /* Some servers (STS, some proxies) wrap it: <ErrorResponse><Error>. What was understood before
     * damage or a cut is kept: a code is worth having. */
    while ((ev = xml_next(&x)) == XML_OPEN || ev == XML_CLOSE) {
        if (ev == XML_OPEN && strcmp(x.name, "Error") == 0 && x.depth <= 2)
            is_error = true;
        else if (ev == XML_CLOSE && is_error && x.depth >= 2)
            error_part(ret, &x);
    }
    xml_free(&x);
    return is_error ? 0 : -EBADMSG;
}

int64_t s3_iso_time_ms(const char *s)
{
    struct tm tm = {0};
    int ms = 0;
    const char *p = strptime(s, "%Y-%m-%dT%H:%M:%S", &tm);

    if (!p)
        return 0;
    if (*p == '.') {
        int scale = 100;
        for (p++; *p >= '0' && *p <= '9'; p++, scale /= 10)
            ms += (*p - '0') * scale;
    }
    if (strcmp(p, "Z") != 0 && strcmp(p, "+00:00") != 0)
        return 0;
    return (int64_t)timegm(&tm) * 1000 + ms;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool s3_decode(char *s, bool plus)
{
    char *to = s;

    for (; *s; s++) {
        if (*s == '%') {
            int hi = hex_value(s[1]);
            int lo = hi < 0 ? -1 : hex_value(s[2]);
            if (lo < 0 || (hi == 0 && lo == 0))
                return false;
            *to++ = (char)(hi << 4 | lo);
            s += 2;
        } else {
            *to++ = plus && *s == '+' ? ' ' : *s;
        }
    }
    *to = '\0';
    return true;
}

/* One row being gathered. Keys are decoded at the end of the row's element, but EncodingType may
 * stand behind the rows: it is looked for first, in a pass of its own. */
struct row {
    struct sbuf key, upload_id;
    uint64_t size;
    bool has_size;
    int64_t modified_ms;
};

static bool url_encoded(const char *p, size_t len)
{
    struct xml x;
    enum xml_event ev;
    bool yes = false;

    xml_init(&x, p, len);
    while ((ev = xml_next(&x)) == XML_OPEN || ev == XML_CLOSE)
        if (ev == XML_CLOSE && x.depth == 2 && strcmp(x.name, "EncodingType") == 0)
            yes = strcmp(sbuf_cstr(&x.text), "url") == 0;
    xml_free(&x);
    return yes;
}

static bool set_text(struct sbuf *b, const struct sbuf *text, bool decode)
{
    sbuf_clear(b);
    sbuf_add(b, sbuf_cstr(text), text->len);
    if (b->bad)
        return false;
    if (strlen(sbuf_cstr(b)) != b->len)
        return false; /* a NUL: no key of ours */
    if (!decode)
        return true;
    if (!s3_decode(b->p, true))
        return false;
    b->len = strlen(b->p);
    return true;
}

static bool row_part(struct row *row, const struct xml *x, bool encoded)
{
    const char *text = sbuf_cstr(&x->text);

    if (strcmp(x->name, "Key") == 0)
        return set_text(&row->key, &x->text, encoded);
    if (strcmp(x->name, "UploadId") == 0)
        return set_text(&row->upload_id, &x->text, false);
    if (strcmp(x->name, "LastModified") == 0 || strcmp(x->name, "Initiated") == 0)
        row->modified_ms = s3_iso_time_ms(text);
    if (strcmp(x->name, "Size") == 0) {
        char *stop;
        errno = 0;
        row->size = strtoull(text, &stop, 10);
        row->has_size = text[0] >= '0' && text[0] <= '9' && *stop == '\0' && errno == 0;
        return row->has_size;
    }
    return true;
}

static bool page_part(struct s3_page *page, const struct xml *x, bool encoded)
{
    if (strcmp(x->name, "IsTruncated") == 0)
        page->truncated = strcmp(sbuf_cstr(&x->text), "true") == 0;
    else if (strcmp(x->name, "NextContinuationToken") == 0)
        return set_text(&page->token, &x->text, false);
    else if (strcmp(x->name, "NextKeyMarker") == 0)
        return set_text(&page->key_marker, &x->text, encoded);
    else if (strcmp(x->name, "NextUploadIdMarker") == 0)
        return set_text(&page->upload_marker, &x->text, false);
    return true;
}

static void row_clear(struct row *row)
{
    sbuf_clear(&row->key);
    sbuf_clear(&row->upload_id);
    row->size = 0;
    row->has_size = false;
    row->modified_ms = 0;
}

int s3_xml_list(const char *p, size_t len, struct s3_page *ret,
                int (*each)(void *arg, const struct obj_entry *e), void *arg)
{
    struct xml x;
    struct row row = {0};
    enum xml_event ev;
    bool objects = false;
    int err = 0;
    bool encoded = url_encoded(p, len);

    *ret = (struct s3_page){0};
    xml_init(&x, p, len);
    while (!err && ((ev = xml_next(&x)) == XML_OPEN || ev == XML_CLOSE)) {
        if (ev == XML_OPEN) {
            if (x.depth == 1) {
                objects = strcmp(x.name, "ListBucketResult") == 0;
                if (!objects && strcmp(x.name, "ListMultipartUploadsResult") != 0)
                    err = -EBADMSG;
            } else if (x.depth == 2) {
                row_clear(&row);
            }
            continue;
        }
        const char *outer = objects ? "Contents" : "Upload";
        if (x.depth == 3 && strcmp(x.stack[1], outer) == 0) {
            if (!row_part(&row, &x, encoded))
                err = -EBADMSG;
        } else if (x.depth == 2 && strcmp(x.name, outer) == 0) {
            if (row.key.len == 0 || (objects ? !row.has_size : row.upload_id.len == 0))
                err = -EBADMSG;
            else
                err = each(arg, &(struct obj_entry){.key = row.key.p,
                                                    .size = row.size,
                                                    .upload_id = objects ? NULL : row.upload_id.p,
                                                    .modified_ms = row.modified_ms});
        } else if (x.depth == 2 && !page_part(ret, &x, encoded)) {
            err = -EBADMSG;
        }
    }
    if (!err && ev != XML_END)
        err = -EBADMSG;
    if (!err && ret->truncated && objects && ret->token.len == 0)
        err = -EBADMSG; /* it says that there is more but not where */
    if (!err && ret->truncated && !objects && ret->key_marker.len == 0)
        err = -EBADMSG;
    sbuf_free(&row.key);
    sbuf_free(&row.upload_id);
    xml_free(&x);
    if (err)
        s3_page_free(ret);
    return err;
}

void s3_page_free(struct s3_page *page)
{
    sbuf_free(&page->token);
    sbuf_free(&page->key_marker);
    sbuf_free(&page->upload_marker);
}

int s3_xml_upload_id(const char *p, size_t len, char **ret)
{
    struct xml x;
    enum xml_event ev;
    int err = -EBADMSG;

    *ret = NULL;
    xml_init(&x, p, len);
    while ((ev = xml_next(&x)) == XML_OPEN || ev == XML_CLOSE)
        if (ev == XML_CLOSE && x.depth == 2 && strcmp(x.name, "UploadId") == 0 && !*ret &&
            strcmp(x.stack[0], "InitiateMultipartUploadResult") == 0 && x.text.len > 0 &&
            x.text.len < OBJ_UPLOAD_ID_MAX) {
            *ret = strdup(x.text.p);
            err = *ret ? 0 : -ENOMEM;
        }
    xml_free(&x);
    if (ev == XML_END && !err)
        return 0;
    free(*ret);
    *ret = NULL;
    return err ? err : -EBADMSG;
}

int s3_xml_complete(const char *p, size_t len, char etag[static OBJ_ETAG_MAX],
                    struct s3_error *error)
{
    struct xml x;
    enum xml_event ev;
    bool ours = false;

    etag[0] = '\0';
    if (s3_xml_error(p, len, error) == 0)
        return -EIO;
    xml_init(&x, p, len);
    while ((ev = xml_next(&x)) == XML_OPEN || ev == XML_CLOSE) {
        if (ev == XML_OPEN && x.depth == 1)
            ours = strcmp(x.name, "CompleteMultipartUploadResult") == 0;
        else if (ev == XML_CLOSE && x.depth == 2 && strcmp(x.name, "ETag") == 0)
            copy(etag, OBJ_ETAG_MAX, &x.text);
    }
    xml_free(&x);
    return ev == XML_END && ours ? 0 : -EBADMSG;
}

int s3_xml_deleted(const char *p, size_t len, unsigned *failed, struct s3_error *first)
{
    struct xml x;
    struct s3_error e = {0};
    enum xml_event ev;
    bool ours = false;

    *failed = 0;
    *first = e;
    xml_init(&x, p, len);
    while ((ev = xml_next(&x)) == XML_OPEN || ev == XML_CLOSE) {
        if (ev == XML_OPEN && x.depth == 1) {
            ours = strcmp(x.name, "DeleteResult") == 0 ||
                   strcmp(x.name, "DeleteObjectsResult") == 0;
        } else if (ev == XML_OPEN && x.depth == 2) {
            e = (struct s3_error){0};
        } else if (ev == XML_CLOSE && x.depth == 3 && strcmp(x.stack[1], "Error") == 0) {
            error_part(&e, &x);
        } else if (ev == XML_CLOSE && x.depth == 2 && strcmp(x.name, "Error") == 0 &&
                   strcmp(e.code, "NoSuchKey") != 0) {
            if ((*failed)++ == 0)
                *first = e;
        }
    }
    xml_free(&x);
    return ev == XML_END && ours ? 0 : -EBADMSG;
}

bool s3_xml_escape(struct sbuf *b, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '&')
            sbuf_str(b, "&amp;");
        else if (c == '<')
            sbuf_str(b, "&lt;");
        else if (c == '>')
            sbuf_str(b, "&gt;");
        else if (c == '"')
            sbuf_str(b, "&quot;");
        else if (c == '\t' || c == '\n' || c == '\r')
            sbuf_fmt(b, "&#%u;", c);
        else if (c < ' ')
            return false;
        else
            sbuf_char(b, *s);
    }
    return true;
}
