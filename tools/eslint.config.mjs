// What ESLint holds the page's scripts to; tools/scripts.py runs it. TypeScript looks for undefined names.
import { createRequire } from 'node:module';

const js = createRequire(process.argv[1])('@eslint/js'); // ESLint's own, wherever npx has put it

export default [
  js.configs.recommended,
  {
    rules: {
      'no-undef': 'off',
      'no-unused-vars': ['error', { ignoreRestSiblings: true }],
      'no-shadow': 'error',
      'no-nested-ternary': 'error',
      'max-lines-per-function': ['error', { max: 60 }],
    },
  },
];
