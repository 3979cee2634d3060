"""Builds the pages of the public headers with doxygen: python3 docs/api.py [FOLDER]   default: build/doxygen

include/fsdp/*.h give names of inner namespaces to namespace fsdp (`using shard::Engine;`), which doxygen doesn't follow. The pages are
therefore made of the headers that declare these names, read as if they stood in namespace fsdp. A first run of doxygen lists all names; the
second leaves out those that are not given. A given name without a page is an error. Called by doxygen with a header, the script prints what
doxygen reads instead of it.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
INNER = 'checkpoint|comm|config|data|nn|optim|parallel|plugin|run|shard|spmd|util'


def headers():
    """The headers to read, those in lib that declare a given name among them, and the given names."""
    public = sorted((PROJECT / 'include/fsdp').glob('*.h'))
    names = set(re.findall(r'^using \w+(?:::\w+)*::(\w+);', ''.join(header.read_text() for header in public), re.M))
    declaration = re.compile(rf'^(?!using \w+::)(?!.*;.*;)[^/(=]*\b(?:{"|".join(names)})\b(?! *;)', re.M)
    included, todo = {}, list(public)
    while todo:
        text = todo.pop().read_text()
        for name in re.findall(r'^#include "((?!fsdp/)[^"]+)"', text, re.M):
            if (header := PROJECT / 'lib' / name) not in included:
                included[header] = bool(declaration.search(header.read_text()))
                todo.append(header)
    inner = sorted(header for header, declares in included.items() if declares)
    return [str(header.relative_to(PROJECT)) for header in public + inner], names


def unbalanced(lines):
    code = ''.join(re.sub('//.*', '', line) for line in lines)
    return sum(code.count(sign) for sign in '({') != sum(code.count(sign) for sign in ')}')


def filtered(header, hidden):
    """A header's text with one namespace, and without the declarations that begin on the lines `hidden` (their comments included)."""
    lines = Path(header).read_text().split('\n')
    for first in hidden:
        if not lines[first - 1]:
            continue
        last = first - 1
        while not re.search(r'[;}]\s*(//.*)?$', lines[last]) or unbalanced(lines[first - 1:last + 1]):
            last += 1
        begin = first - 1
        while begin and lines[begin - 1].lstrip().startswith(('///', 'template <')):
            begin -= 1
        lines[begin:last + 1] = [''] * (last + 1 - begin)
    text = re.sub(rf'namespace fsdp::(?:{INNER})(?:::\w+)?\b', 'namespace fsdp', '\n'.join(lines))
    text = re.sub(rf'^using (?:{INNER})::\w+;\n', '', text, flags=re.M)
    return re.sub(rf'\b(?:{INNER})::(?=[A-Za-z_])', '', text)


def doxygen(hidden, **settings):
    lines = ['@INCLUDE = docs/Doxyfile', f'INPUT_FILTER = "python3 {__file__}"', *(f'{key} = {value}' for key, value in settings.items())]
    subprocess.run(['doxygen', '-'], input='\n'.join(lines), text=True, cwd=PROJECT, check=True,
                   env={**os.environ, 'FSDP_HIDDEN': json.dumps(hidden)})


def described(folder):
    """name, and the place of a function, variable or alias of namespace fsdp; no place for a type, whose name is enough to leave it out."""
    for part in (folder / 'index.xml', folder / 'namespacefsdp.xml'):
        root = xml.etree.ElementTree.parse(part).getroot()
        for compound in root.findall('compound'):
            if compound.get('kind') in ('class', 'struct') and compound.find('name').text.startswith('fsdp::'):
                yield re.match(r'\w+', compound.find('name').text[6:])[0], None
        for member in root.iter('memberdef'):
            place = member.find('location')
            yield member.find('name').text, (place.get('file'), int(place.get('line')))


def main():
    if len(sys.argv) > 1 and sys.argv[1].endswith('.h'):
        hidden = json.loads(os.environ['FSDP_HIDDEN'])
        return print(filtered(sys.argv[1], hidden.get(os.path.relpath(sys.argv[1], PROJECT), [])), end='')
    target = Path(sys.argv[1] if len(sys.argv) > 1 else PROJECT / 'build/doxygen').resolve()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    inputs, public = headers()
    settings = {'INPUT': ' '.join(inputs), 'OUTPUT_DIRECTORY': target}
    doxygen({}, **settings, GENERATE_XML='YES', GENERATE_HTML='NO')
    found = list(described(target / 'xml'))
    if missing := public - {name for name, _ in found}:
        sys.exit(f'no page describes these names of include/fsdp: {" ".join(sorted(missing))}')
    hidden = {}
    for name, place in found:
        if place and name not in public:
            hidden.setdefault(os.path.relpath(place[0], PROJECT), []).append(place[1])
    types = ' '.join(sorted({f'fsdp::{name}' for name, place in found if not place and name not in public}))
    doxygen(hidden, **settings, EXCLUDE_SYMBOLS=types, HIDE_UNDOC_CLASSES='YES')


main()
