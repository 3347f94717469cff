// PTX as text, made into kernels. nvcc writes one statement a line; only inline assembly puts
// several on one, with braces around them.
#include <stdlib.h>
#include <algorithm>
#include <fstream>
#include <sstream>
#include "interpreter.h"

namespace ptx {

// ---- text ----

static bool begins(const std::string &s, const char *with) {
    return s.compare(0, strlen(with), with) == 0;
}

static std::string trimmed(const std::string &s) {
    size_t first = s.find_first_not_of(" \t\r"), last = s.find_last_not_of(" \t\r");
    return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

static std::vector<std::string> words(const std::string &s) {
    std::istringstream in(s);
    std::vector<std::string> all;
    for (std::string word; in >> word; ) all.push_back(word);
    return all;
}

// Pieces between separators; not at those within {} or [].
static std::vector<std::string> split(const std::string &s, char separator) {
    std::vector<std::string> pieces(1);
    int depth = 0;
    for (char c : s) {
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (c == separator && depth == 0) pieces.emplace_back();
        else pieces.back() += c;
    }
    for (std::string &piece : pieces) piece = trimmed(piece);
    return pieces;
}

static Type type_of(const std::string &name) {
    static const std::map<std::string, Type> types = {
        { "pred", PRED }, { "b8", U8 }, { "u8", U8 }, { "s8", S8 }, { "b16", U16 }, { "u16", U16 },
        { "s16", S16 }, { "b32", U32 }, { "u32", U32 }, { "s32", S32 }, { "b64", U64 },
        { "u64", U64 }, { "s64", S64 }, { "bf16", BF16 }, { "f32", F32 }, { "f64", F64 },
    };
    auto found = types.find(name);
    return found == types.end() ? NO_TYPE : found->second;
}

// ".shared .align 16 .b8 sums[8192]", ".param .u64 x". Where it lies is not known yet.
static Variable variable(const std::string &declaration) {
    Variable v = { "", 0, 0, 0 };
    std::vector<std::string> all = words(declaration);
    for (size_t i = 0; i + 1 < all.size(); i++) {
        Type type = type_of(all[i].substr(1));
        if (type) v.bytes = size_of(type);
        if (all[i] == ".align") v.align = strtoull(all[i + 1].c_str(), nullptr, 10);
    }
    size_t bracket = all.back().find('[');
    v.name = all.back().substr(0, bracket);
    if (!v.align) v.align = v.bytes;
    if (bracket != std::string::npos)
        v.bytes *= strtoull(all.back().c_str() + bracket + 1, nullptr, 10);
    return v;
}

static size_t rounded_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// ---- instructions by name ----

static const Meaning *find_meaning(const std::string &name) {
    static std::map<std::string, const Meaning *> known;
    if (known.empty())
        for (const Meaning *table : { instructions, arithmetic })
            for (const Meaning *m = table; m->names; m++)
                for (const std::string &n : words(m->names)) known[n] = m;
    auto found = known.find(name);
    return found == known.end() ? nullptr : found->second;
}

// ---- the parser ----

struct Parser {
    const char *path;
    int line = 0;                                          // of the file
    Program program;
    std::map<std::string, Variable> shared;                // outside of kernels
    // of the kernel that is being read
    Kernel *kernel = nullptr;
    int depth = 0;                                         // of braces; 0 before its first one
    std::map<std::string, int> rows;                       // of registers, constants, addresses ...
    std::map<std::string, int> labels;
    std::vector<std::pair<size_t, std::string>> jumps;     // instructions, and where they go
    std::vector<int> dynamic;                              // rows: where dynamic memory begins
    Source source;

    [[noreturn]] void refuse(const std::string &what) {
        die("%s:%d: %s%s%s", path, line, kernel ? kernel->name.c_str() : "", kernel ? ": " : "",
            what.c_str());
    }

    // ---- operands ----

    // A variable is placed no better aligned than it declares, so that an access which relies on
    // more is found.
    size_t place_shared(const Variable &v) {
        size_t at = rounded_up(kernel->shared_bytes, v.align);
        if (v.align < 16 && at / v.align % 2 == 0) at += v.align;
        kernel->shared_bytes = at + v.bytes;
        return at;
    }

    void constant(int row, uint64_t value) { kernel->constants[row] = value; }

    // The address of a variable within its space. What is no variable is a register.
    void symbol(int row, const std::string &name) {
        for (const Variable &p : kernel->parameters)
            if (p.name == name) return constant(row, p.at);
        auto found = shared.find(name);
        if (found == shared.end()) return;
        if (found->second.bytes == 0) dynamic.push_back(row);
        else constant(row, place_shared(found->second));
    }

    // 12, -1, 0f3F800000, 0d3FF0000000000000
    static uint64_t number(const std::string &s) {
        bool is_float = s.size() > 2 && s[0] == '0' && (s[1] == 'f' || s[1] == 'd');
        return is_float ? strtoull(s.c_str() + 2, nullptr, 16) : strtoull(s.c_str(), nullptr, 0);
    }

    // A register is known when it is first named: a name means the same in all scopes of a kernel.
    int row(const std::string &name) {
        auto found = rows.find(name);
        if (found != rows.end()) return found->second;
        int r = rows[name] = kernel->rows++;
        bool special = name == "%laneid" || name.find('.') != std::string::npos;      // %tid.x
        if (special) kernel->specials[r] = name;
        else if (isdigit(name[0]) || name[0] == '-') constant(r, number(name));
        else symbol(r, name);
        return r;
    }

    Operand operand(std::string s) {
        Operand o;
        bool is_address = s[0] == '[';
        char separator = s[0] == '{' ? ',' : '|';          // {a, b}, p|q
        if (is_address || s[0] == '{') s = s.substr(1, s.size() - 2);
        size_t plus = s.find('+');
        if (is_address && plus != std::string::npos) {     // [%rd1+16], [%rd1+-8]
            o.offset = strtoll(s.c_str() + plus + 1, nullptr, 10);
            s = s.substr(0, plus);
        }
        for (const std::string &part : split(s, separator)) o.rows.push_back(row(part));
        return o;
    }

    // ---- statements ----

    // ld.global.v4.f32: its meaning is that of ld.global, its type F32, and it has four registers.
    void decode(Instruction *i, const std::string &opcode) {
        std::string name;
        for (const std::string &part : split(opcode, '.')) {
            Type type = type_of(part);
            if (type) (i->type ? i->from : i->type) = type;
            else if (part != "v2" && part != "v4") name += (name.empty() ? "" : ".") + part;
        }
        i->meaning = find_meaning(opcode);
        if (!i->meaning) i->meaning = find_meaning(name);
        if (!i->meaning) refuse("the interpreter has no instruction " + opcode);
    }

    void guard(Instruction *i, std::string *s) {           // @%p1 or @!%p1
        size_t end = s->find_first_of(" \t");
        i->guard_negated = (*s)[1] == '!';
        size_t begin = i->guard_negated ? 2 : 1;
        i->guard = row(s->substr(begin, end - begin));
        *s = trimmed(s->substr(end));
    }

    void instruction(std::string s) {
        Instruction i;
        i.text = s;
        i.source = source;
        if (s[0] == '@') guard(&i, &s);
        size_t end = s.find_first_of(" \t");
        decode(&i, s.substr(0, end));
        std::string rest = end == std::string::npos ? "" : trimmed(s.substr(end));
        if (rest[0] == '$') jumps.emplace_back(kernel->code.size(), rest);
        else if (!rest.empty())
            for (const std::string &o : split(rest, ',')) i.operands.push_back(operand(o));
        kernel->code.push_back(i);
    }

    void statement(const std::string &s) {
        if (begins(s, ".shared")) {
            Variable v = variable(s);
            constant(rows[v.name] = kernel->rows++, place_shared(v));
        } else if (s[0] == '.') directive(s);
        else instruction(s);
    }

    void directive(const std::string &s) {
        static const char *const known[] = { ".version", ".target", ".address_size", ".pragma",
                                             ".maxntid", ".minnctapersm", ".reqntid", ".reg" };
        for (const char *name : known) if (begins(s, name)) return;
        refuse("the interpreter does not know " + s);
    }

    // ---- kernels ----

    void kernel_begin(const std::string &s) {              // .visible .entry NAME(
        size_t name = s.find(".entry") + 7, end = s.find('(');
        std::string called = s.substr(name, end - name);
        kernel = &program.kernels[called];
        kernel->name = called;
        source = Source();
        rows.clear();
        labels.clear();
        jumps.clear();
        dynamic.clear();
    }

    void parameter(std::string s) {
        if (s.back() == ',') s.pop_back();
        Variable v = variable(s);
        v.at = rounded_up(kernel->parameter_bytes, v.align);
        kernel->parameter_bytes = v.at + v.bytes;
        kernel->parameters.push_back(v);
    }

    void kernel_end(void) {
        instruction("ret");
        kernel->shared_bytes = rounded_up(kernel->shared_bytes, 16);
        for (int r : dynamic) constant(r, kernel->shared_bytes);
        for (auto &jump : jumps) {
            auto found = labels.find(jump.second);
            if (found == labels.end()) refuse("there is no label " + jump.second);
            kernel->code[jump.first].target = found->second;
        }
        kernel = nullptr;
    }

    // Statements end with a semicolon, labels with a colon; braces open and close scopes.
    void body(std::string s) {
        while (!(s = trimmed(s)).empty()) {
            size_t end = s.find(';');
            if (s[0] == '{') {
                depth++;
                end = 0;
            } else if (s[0] == '}') {
                if (--depth == 0) return kernel_end();
                end = 0;
            } else if (end != std::string::npos) statement(s.substr(0, end));
            else if (s.back() == ':') labels[s.substr(0, s.size() - 1)] = (int)kernel->code.size();
            else if (s[0] == '.') directive(s);
            else refuse("a statement without an end: " + s);
            if (end == std::string::npos) return;
            s = s.substr(end + 1);
        }
    }

    // .loc FILE LINE COLUMN, function_name ..., inlined_at FILE LINE COLUMN. Line 0: nvcc's own.
    void location(const std::string &s) {
        Source at;
        size_t caller = s.find("inlined_at");
        sscanf(s.c_str(), ".loc %d %d", &at.file, &at.line);
        if (caller != std::string::npos)
            sscanf(s.c_str() + caller, "inlined_at %d %d", &at.caller_file, &at.caller_line);
        if (at.line) source = at;
    }

    void file(const std::string &s) {                      // .file 1 "/path/to/train_gpt2.cu"
        size_t begin = s.find('"') + 1;
        program.files[atoi(s.c_str() + 6)] = s.substr(begin, s.find('"', begin) - begin);
    }

    void module(const std::string &s) {
        if (s.find(".entry") != std::string::npos) kernel_begin(s);
        else if (s.find(".shared") != std::string::npos) {
            Variable v = variable(s.substr(0, s.size() - 1));
            shared[v.name] = v;
        } else directive(s);
    }

    void read(const std::string &text) {
        if (begins(text, ".loc")) return location(text);
        if (begins(text, ".file")) return file(text);
        std::string s = trimmed(text.substr(0, text.find("//")));
        if (s.empty()) return;
        if (!kernel) module(s);
        else if (depth > 0 || s[0] == '{') body(s);
        else if (begins(s, ".param")) parameter(s);
        else if (s != ")") directive(s);
    }
};

Program parse(const char *path) {
    std::ifstream file(path);
    if (!file) die("cannot read %s", path);
    Parser p;
    p.path = path;
    for (std::string line; std::getline(file, line) && !begins(trimmed(line), ".section"); ) {
        p.line++;
        p.read(trimmed(line));
    }
    return p.program;
}

}  // namespace ptx
