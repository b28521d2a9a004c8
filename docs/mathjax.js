// What pymdownx.arithmatex marks is set by the copy of MathJax beside these pages.
window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]] },
  options: { ignoreHtmlClass: ".*|", processHtmlClass: "arithmatex", enableMenu: false },
  chtml: { matchFontHeight: false },
};
