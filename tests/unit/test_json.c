/* Strings of any bytes become valid JSON from which the bytes can be had back. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/volume/json.h"

static char *written(const void *p, size_t len)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    json_bytes(f, p, len);
    (void)fclose(f);
    return text;
}

Test(json, each_kind_of_byte_has_its_form)
{
    static const struct {
        const char *in, *out;
    } t[] = {
        {"", "\"\""},
        {"plain", "\"plain\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\""},
        {"\n\t\x01\x7f", "\"\\u000a\\u0009\\u0001\\u007f\""},
        {"gr\xc3\xbc\xc3\x9f", "\"gr\xc3\xbc\xc3\x9f\""},
        {"\xe2\x82\xac", "\"\xe2\x82\xac\""},
        {"\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\""},
        {"\xff", "\"\\udcff\""},
        {"\x80", "\"\\udc80\""},
        {"\xc3", "\"\\udcc3\""},
        {"\xc3(", "\"\\udcc3(\""},
        {"\xc0\xaf", "\"\\udcc0\\udcaf\""},                       /* overlong */
        {"\xe0\x80\xaf", "\"\\udce0\\udc80\\udcaf\""},            /* overlong */
        {"\xed\xa0\x80", "\"\\udced\\udca0\\udc80\""},            /* a surrogate */
        {"\xf4\x90\x80\x80", "\"\\udcf4\\udc90\\udc80\\udc80\""}, /* above U+10FFFF */
        {"\xe2\x82", "\"\\udce2\\udc82\""},                       /* cut off */
        {"\xf8\x88\x80\x80\x80", "\"\\udcf8\\udc88\\udc80\\udc80\\udc80\""},
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        char *got = written(t[i].in, strlen(t[i].in));
        cr_expect_str_eq(got, t[i].out, "row %zu: %s", i, got);
        free(got);
    }
}

Test(json, a_zero_byte_and_every_single_byte_are_escaped_apart)
{
    char *all[256];
    for (int b = 0; b < 256; b++) {
        unsigned char byte = (unsigned char)b;
        all[b] = written(&byte, 1);
        for (int a = 0; a < b; a++)
            cr_expect_str_neq(all[a], all[b]);
    }
    cr_expect_str_eq(all[0], "\"\\u0000\"");
    for (int b = 0; b < 256; b++)
        free(all[b]);
}

Test(json, a_number_that_json_cannot_hold_is_null)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    json_double(f, 1.5);
    json_double(f, NAN);
    json_double(f, INFINITY);
    json_string(f, NULL);
    (void)fclose(f);
    cr_expect_str_eq(text, "1.500nullnullnull");
    free(text);
}
